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

// Bounds of the contents. An answer that exceeds them is refused.
const (
	maxKeys  = 100_000
	maxBytes = 256 << 20 // keys and texts

	maxName = 1024 // bytes of the name of a text; a key with a longer name is not a service file
)

// namePrefix is the prefix of the names of texts; the key follows.
const namePrefix = Name + ":"

// contents are all keys below the prefix. Both lists are sorted by name, and immutable.
type contents struct {
	texts  []remote.Text // service files
	others []remote.Text // keys that are not service files, without data
	bytes  int           // of keys and texts
}

// isServiceFile reports whether a key is a service file.
func isServiceFile(key string) bool {
	if !strings.HasSuffix(key, ".toml") && !strings.HasSuffix(key, ".json") || len(namePrefix)+len(key) > maxName || !utf8.ValidString(key) {
		return false
	}
	return !strings.ContainsFunc(key, func(r rune) bool { return !strconv.IsPrint(r) })
}

// A change is the new state of a key.
type change struct {
	data []byte
	gone bool
}

// changes are changes of keys that are not in contents yet.
type changes struct {
	prefix string
	byKey  map[string]change
	bytes  int // of all keys and texts received, including those that were replaced meanwhile
}

// These bytes are added for each key and each answer, so that even an endless stream of empty ones reaches a bound.
const (
	keyOverhead    = 64
	answerOverhead = 1 << 10
)

func newChanges(prefix string) *changes { return &changes{prefix: prefix, byKey: map[string]change{}} }

// put records a key and its data. It drops the data if the key is not a service file.
func (c *changes) put(kv *mvccpb.KeyValue) error {
	data := kv.GetValue()
	if !isServiceFile(string(kv.GetKey())) {
		data = nil
	}
	return c.record(kv, change{data: data})
}

// remove records that a key was deleted.
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

// with returns the contents after changes, and whether a text differs. It does not modify c.
func (c *contents) with(ch *changes) (next contents, differs bool, err error) {
	var texts, others []string
	for _, key := range slices.Sorted(maps.Keys(ch.byKey)) {
		if isServiceFile(key) {
			texts = append(texts, key)
		} else {
			others = append(others, key)
		}
	}
	next.bytes = c.bytes
	next.texts, differs = ch.merge(c.texts, texts, &next.bytes)
	next.others, _ = ch.merge(c.others, others, &next.bytes)
	return next, differs, checkBounds(len(next.texts)+len(next.others), next.bytes)
}

// merge applies the changes of these sorted keys to a list. It returns the new list, and whether it differs. It adds the
// difference in bytes to size.
func (c *changes) merge(was []remote.Text, keys []string, size *int) (is []remote.Text, differs bool) {
	find := func(in []remote.Text, name string) (at int, found bool) {
		return slices.BinarySearchFunc(in, name, func(t remote.Text, name string) int { return strings.Compare(t.Name, name) })
	}
	keys = slices.DeleteFunc(keys, func(key string) bool {
		now := c.byKey[key]
		at, had := find(was, namePrefix+key)
		return had != now.gone && (!had || bytes.Equal(was[at].Data, now.data))
	})
	if len(keys) == 0 {
		return was, false // no copy if a key was written again with the same data
	}
	is = make([]remote.Text, 0, len(was)+len(keys))
	for _, key := range keys {
		now, name := c.byKey[key], namePrefix+key
		at, had := find(was, name)
		is, was = append(is, was[:at]...), was[at:]
		if had {
			*size -= len(name) + len(was[0].Data)
			was = was[1:]
		}
		if !now.gone {
			*size += len(name) + len(now.data)
			is = append(is, remote.Text{Name: name, Data: now.data})
		}
	}
	return append(is, was...), true
}

// equal reports whether c and o have the same texts.
func (c *contents) equal(o *contents) bool {
	return slices.EqualFunc(c.texts, o.texts, func(a, b remote.Text) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
}

// warnOfOthers logs keys that are not service files, if they differ from those in the last warning.
func (f *Fetcher) warnOfOthers() {
	const shown = 3
	others := f.contents.others
	var names []string
	for _, t := range others[:min(shown, len(others))] {
		names = append(names, short(t.Name))
	}
	what := fmt.Sprint(len(others), names)
	if what == f.warned {
		return
	}
	f.warned = what
	if len(others) > 0 {
		f.Log.Warn("not using keys of etcd that are no service files", "keys", len(others), "first", strings.Join(names, " "))
	}
}

// short quotes and shortens a text from a member.
func short(text string) string {
	const most = 200
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
