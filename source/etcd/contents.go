package etcd

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"svcproxy.dev/svcproxy/source/remote"
)

// Bounds of what is kept of an etcd. An answer with more is refused.
const (
	maxKeys  = 100_000
	maxBytes = 256 << 20 // keys and texts

	maxName = 1024 // bytes of the name of a text; a key with a longer one is no service file
)

// namePrefix begins the names of texts; the key follows.
const namePrefix = Name + ":"

// contents are all keys below the prefix.
type contents struct {
	texts  []remote.Text       // of service files, sorted by name; not changed once they were given
	others map[string]struct{} // names of keys that are no service files
	bytes  int                 // of keys and texts
}

// isServiceFile reports whether a key is a service file.
func isServiceFile(key string) bool {
	if !strings.HasSuffix(key, ".toml") && !strings.HasSuffix(key, ".json") || len(namePrefix)+len(key) > maxName || !utf8.ValidString(key) {
		return false
	}
	return !strings.ContainsFunc(key, func(r rune) bool { return !strconv.IsPrint(r) })
}

// A change is what becomes of a key.
type change struct {
	data []byte
	gone bool
}

// changes are those of keys that are not in contents yet.
type changes struct {
	prefix string
	byKey  map[string]change
	bytes  int // of all keys and texts that came, also those that others replaced
}

// Neither keys nor answers without bytes can come without end: they count as so many.
const (
	keyOverhead    = 64
	answerOverhead = 1 << 10
)

func newChanges(prefix string) *changes { return &changes{prefix: prefix, byKey: map[string]change{}} }

// put records that a key is there. The data of what is no service file is not kept.
func (c *changes) put(kv *mvccpb.KeyValue) error {
	data := kv.GetValue()
	if !isServiceFile(string(kv.GetKey())) {
		data = nil
	}
	return c.record(kv, change{data: data})
}

// remove records that a key is gone.
func (c *changes) remove(kv *mvccpb.KeyValue) error { return c.record(kv, change{gone: true}) }

func (c *changes) record(kv *mvccpb.KeyValue, now change) error {
	key := string(kv.GetKey())
	if !strings.HasPrefix(key, c.prefix) {
		return refuse("it has the key %s, which is not below the prefix", short(key))
	}
	c.bytes += len(key) + len(now.data) + keyOverhead
	c.byKey[key] = now
	return checkBounds(len(c.byKey), c.bytes)
}

func checkBounds(keys, bytes int) error {
	switch {
	case keys > maxKeys:
		return refuse("there are more than %d keys", maxKeys)
	case bytes > maxBytes:
		return refuse("keys and texts have more than %d bytes", maxBytes)
	}
	return nil
}

// with returns the contents after changes, and whether a text differs. The former contents stay as they are.
func (c *contents) with(ch *changes) (next contents, differs bool, err error) {
	next = contents{texts: make([]remote.Text, 0, len(c.texts)+len(ch.byKey)), others: maps.Clone(c.others)}
	if next.others == nil {
		next.others = map[string]struct{}{}
	}
	rest := c.texts
	for _, key := range slices.Sorted(maps.Keys(ch.byKey)) {
		now, name := ch.byKey[key], namePrefix+key
		if !isServiceFile(key) {
			delete(next.others, name)
			if !now.gone {
				next.others[name] = struct{}{}
			}
			continue
		}
		at, had := slices.BinarySearchFunc(rest, name, func(t remote.Text, name string) int { return strings.Compare(t.Name, name) })
		next.texts = append(next.texts, rest[:at]...)
		rest = rest[at:]
		if had {
			differs = differs || now.gone || !bytes.Equal(rest[0].Data, now.data)
			rest = rest[1:]
		}
		if !now.gone {
			differs = differs || !had
			next.texts = append(next.texts, remote.Text{Name: name, Data: now.data})
		}
	}
	next.texts = append(next.texts, rest...)
	next.bytes = next.size()
	return next, differs, checkBounds(len(next.texts)+len(next.others), next.bytes)
}

// size returns how many bytes keys and texts have.
func (c *contents) size() (n int) {
	for i := range c.texts {
		n += len(c.texts[i].Name) + len(c.texts[i].Data)
	}
	for name := range c.others {
		n += len(name)
	}
	return n
}

// equal reports whether the texts of both are the same.
func (c *contents) equal(o *contents) bool {
	return slices.EqualFunc(c.texts, o.texts, func(a, b remote.Text) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
}

// warnOfOthers warns of keys that are no service files, when they have changed.
func (f *Fetcher) warnOfOthers() {
	const shown = 3
	names := slices.Sorted(maps.Keys(f.contents.others))
	var text strings.Builder
	for _, name := range names[:min(shown, len(names))] {
		fmt.Fprintf(&text, "%s ", short(name))
	}
	what := fmt.Sprintf("%d %s", len(names), text.String())
	if what == f.warned {
		return
	}
	f.warned = what
	if len(names) > 0 {
		f.Log.Warn("not using keys of etcd that are no service files", "keys", len(names), "first", strings.TrimSpace(text.String()))
	}
}

// short returns a text from afar so that it can be shown.
func short(text string) string {
	const most = 200
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
