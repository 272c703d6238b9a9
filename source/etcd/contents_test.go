package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
)

func TestIsServiceFile(t *testing.T) {
	for key, want := range map[string]bool{
		"/p/web.toml": true, "/p/a/b.json": true, "/p/é 1.toml": true,
		"/p/web": false, "/p/web.TOML": false, "/p/web.toml/": false, "": false,
		"/p/\x1b[31m.toml": false, "/p/a\nb.toml": false, "/p/\xff.toml": false, "/p/\u202egnp.toml": false,
		"/" + strings.Repeat("x", maxName) + ".toml": false,
	} {
		if got := isServiceFile(key); got != want || read.IsTextName(namePrefix+key) != want { // a Set with an invalid name is refused
			t.Errorf("%q: %v", key, got)
		}
	}
}

// The number of keys and their total size are bounded.
func TestBounds(t *testing.T) {
	large := make([]byte, 16<<20)
	c := newChanges(testPrefix)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = c.put(kv(fmt.Sprintf("%d.toml", n), "", 1))
		if err == nil {
			err = c.put(&mvccpb.KeyValue{Key: fmt.Appendf(nil, "%slarge%d.toml", testPrefix, n), Value: large})
		}
	}
	if err == nil || n != maxBytes/len(large) {
		t.Errorf("after %d large texts: %v", n, err)
	}
	var all contents
	for n = 0; n < 100; n++ {
		one := newChanges(testPrefix)
		fatal.If(t, one.put(&mvccpb.KeyValue{Key: fmt.Appendf(nil, "%s%d.toml", testPrefix, n), Value: large}))
		next, _, err := all.with(one)
		if err != nil {
			break
		}
		all = next
	}
	if n != maxBytes/len(large)-1 { // the keys add bytes
		t.Errorf("%d large texts are held", n)
	}
}

// Unused keys are logged once, so that they do not flood the log.
func TestOtherKeysAreNamed(t *testing.T) {
	var log bytes.Buffer
	s := &fake{list: pages(kv("\x1b[31m", "x", 1), kv("a.toml", "1", 1), kv(strings.Repeat("long", 1000), "x", 1), kv("readme", "x", 1))}
	o := s.serve(t)
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	f := follow(t, o)
	f.wait("a.toml=1")
	f.end()
	if text := log.String(); strings.Count(text, "not using keys") != 1 || !strings.Contains(text, "keys=3") || strings.Contains(text, "\x1b") || len(text) > 1500 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

// The cost of writing a key again does not depend on the number of keys.
func TestWrittenAgain(t *testing.T) {
	all := newChanges(testPrefix)
	for i := range 1000 {
		fatal.If(t, all.put(kv(fmt.Sprintf("%d.toml", i), "1", 1)))
		fatal.If(t, all.put(kv(fmt.Sprintf("%d.yaml", i), "1", 1)))
	}
	c, _, err := new(contents).with(all)
	fatal.If(t, err)
	again := newChanges(testPrefix)
	fatal.If(t, again.put(kv("7.toml", "1", 2)))
	fatal.If(t, again.put(kv("7.yaml", "2", 2)))
	next, differs, err := c.with(again)
	if fatal.If(t, err); differs || &next.texts[0] != &c.texts[0] || &next.others[0] != &c.others[0] {
		t.Errorf("differs is %v, or the keys were copied", differs)
	}
}

// FuzzContents applies changes from a server in any order, and compares the result with a map.
func FuzzContents(f *testing.F) {
	f.Add([]byte("+a.toml=1\n+b.json={}\n;\n-a.toml\n+readme=x\n+a.toml=2\n;\n+b.json={}\n"))
	f.Add([]byte("+\xff.toml=x\n+\x1b.toml=\n;-\n+/../x.toml=1\n+=\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		var c contents
		want := map[string]string{}
		pending := newChanges(testPrefix)
		commit := func() {
			before := slices.Clone(c.texts)
			old := maps.Clone(want)
			for key, ch := range pending.byKey {
				if name := namePrefix + key; !isServiceFile(key) {
					continue
				} else if ch.gone {
					delete(want, name)
				} else {
					want[name] = string(ch.data)
				}
			}
			next, differs, err := c.with(pending)
			fatal.If(t, err)
			if differs == maps.Equal(old, want) {
				t.Fatalf("differs is %v: %q before, %q after", differs, old, want)
			}
			if !slices.EqualFunc(before, c.texts, func(a, b remote.Text) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
				t.Fatal("the contents before were changed")
			}
			c, pending = next, newChanges(testPrefix)
			compare(t, &c, want)
		}
		for line := range bytes.Lines(input) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if len(line) == 0 || line[0] == ';' {
				commit()
				continue
			}
			key, text, _ := bytes.Cut(line[1:], []byte("="))
			kv := &mvccpb.KeyValue{Key: append([]byte(testPrefix), key...), Value: text}
			if line[0] == '-' {
				fatal.If(t, pending.remove(kv))
			} else {
				fatal.If(t, pending.put(kv))
			}
		}
		commit()
	})
}

// compare checks the invariants of contents, and compares the texts with a map.
func compare(t *testing.T, c *contents, want map[string]string) {
	t.Helper()
	if len(c.texts) != len(want) {
		t.Fatalf("%d texts, want %d", len(c.texts), len(want))
	}
	for i, text := range c.texts {
		data, ok := want[text.Name]
		if !ok || data != string(text.Data) || text.Signed || i > 0 && c.texts[i-1].Name >= text.Name {
			t.Fatalf("text %d is %q of %q, want %q", i, text.Data, text.Name, data)
		}
	}
	size := 0
	for _, text := range slices.Concat(c.texts, c.others) {
		size += len(text.Name) + len(text.Data)
	}
	if c.bytes != size {
		t.Fatalf("%d bytes, want %d", c.bytes, size)
	}
}
