package keep

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
)

// A file that is as it was before while the disk takes what it was in between is recorded as it is, whatever the
// store knew when it was told: the version, or that there was none.
func TestPutWhileWriting(t *testing.T) {
	versions := map[string]*read.Version{"": nil}
	for _, text := range []string{"a", "b", "c"} {
		versions[text] = &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: 1}
	}
	for _, first := range []string{"a", ""} {
		st := New(t.TempDir(), slog.New(slog.DiscardHandler))
		put := func(text string) {
			e := Entry{Version: versions[text]}
			if e.Version != nil {
				e.Record = Record{Sum: e.Version.ID, Since: time.Unix(1, 0), At: time.Unix(2, 0)}
			}
			st.Put(map[string]Entry{"x.toml": e})
		}
		put(first)
		st.settle()
		put("b")
		taken := st.next()
		put("c")
		put(first)
		fatal.If(t, st.write(taken))
		st.settle()
		if why := st.WriteError(); why != "" || !st.OnDisk() {
			t.Errorf("%q: %s, pending %v", first, why, slices.Collect(maps.Keys(st.pending)))
		}
		r, ok := st.recordOf("x.toml")
		if v := versions[first]; ok != (v != nil) || ok && r.Sum != v.ID {
			t.Errorf("%q: recorded %v %x", first, ok, r.Sum[:4])
		}
		if !ok {
			continue
		}
		if data, err := st.Read("x.toml", r); err != nil || string(data) != first {
			t.Errorf("%q: its copy is %q, %v", first, data, err)
		}
		again := New(st.stateDir(), slog.New(slog.DiscardHandler))
		if again.Load(); again.known["x.toml"].Sum != r.Sum {
			t.Errorf("%q: the index has %v, want %v", first, again.known["x.toml"], r)
		}
	}
}

// Nor does the store know what is recorded after an index that could not be written.
func TestPutAfterError(t *testing.T) {
	st := New(t.TempDir(), slog.New(slog.DiscardHandler))
	put := func(text string) error {
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.Put(map[string]Entry{"x.toml": {Record: Record{Sum: v.ID, Since: time.Unix(1, 0), At: time.Unix(2, 0)}, Version: v}})
		return st.write(st.next())
	}
	checked(t, put("a"))
	checked(t, os.Remove(st.index.path))
	checked(t, os.Mkdir(st.index.path, 0o700))
	if put("b") == nil {
		t.Fatal("the index is a directory, and was written")
	}
	checked(t, os.Remove(st.index.path))
	checked(t, put("a"))
	again := New(st.stateDir(), slog.New(slog.DiscardHandler))
	if again.Load(); again.known["x.toml"].Sum != read.IDOf([]byte("a"), nil) || st.Pending() {
		t.Errorf("the index has %v", again.known)
	}
}

// What could not be written, and is not to be any more, is no trouble.
func TestTroubleEndsWithItsCause(t *testing.T) {
	st := New(t.TempDir(), slog.New(slog.DiscardHandler))
	put := func(text string) {
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.Put(map[string]Entry{"x.toml": {Record: Record{Sum: v.ID, Since: time.Unix(1, 0), At: time.Unix(2, 0)}, Version: v}})
		for woken(st) {
			st.settle()
		}
	}
	put("a")
	temp := filepath.Join(st.Dir(), tempName)
	checked(t, os.MkdirAll(filepath.Join(temp, "x"), 0o700)) // so that no copy can be written
	if put("b"); st.WriteError() == "" {
		t.Fatal("a copy was written")
	}
	if put("a"); st.WriteError() != "" || !st.OnDisk() {
		t.Errorf("still: %s", st.WriteError())
	}
}

// woken reports whether the store was told that there is work, and takes that.
func woken(st *Store) bool {
	select {
	case <-st.wakeups:
		return true
	default:
		return false
	}
}

// A history whose index cannot be read for a while is not replaced by a new one.
func TestHistoryThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	add := func(text string) *history {
		st := New(dir, slog.New(slog.DiscardHandler))
		st.Load()
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.Put(map[string]Entry{"x.toml": {Record: Record{Sum: v.ID, Since: time.Unix(1, 0), At: time.Unix(2, 0)}, Version: v}})
		checked(t, st.write(st.next()))
		return st.history
	}
	add("a")
	h := add("b")
	checked(t, os.Rename(h.index.path, h.index.path+".away"))
	checked(t, os.Symlink("index", h.index.path)) // ELOOP, for root too
	if add("c").said == "" {
		t.Error("nothing says that the history cannot be read")
	}
	if _, err := os.Readlink(h.index.path); err != nil {
		t.Errorf("the index was replaced: %v", err)
	}
	checked(t, os.Rename(h.index.path+".away", h.index.path))
	h = add("d")
	var texts []string
	for _, r := range h.list {
		text, err := os.ReadFile(h.dir.path(r.version()))
		checked(t, err)
		texts = append(texts, string(text))
	}
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(texts, want) {
		t.Errorf("the history has %q, want %q", texts, want)
	}
}

// A copy that a power failure has cut off is whole again once its version comes back.
func TestHistoryRepairsCopy(t *testing.T) {
	s := newSyncing(t)
	s.write("1")
	s.write("2")
	cut := s.history.dir.path(Version{"x.toml", read.IDOf([]byte("1"), nil)})
	checked(t, os.Remove(cut)) // it is a link
	checked(t, os.WriteFile(cut, nil, 0o600))
	s.write("1")
	if text, err := os.ReadFile(cut); err != nil || string(text) != "1" {
		t.Errorf("the history has %q, %v", text, err)
	}
	if names, err := filepath.Glob(s.history.dir.file(tempName)); err != nil || names != nil {
		t.Errorf("left behind: %q, %v", names, err)
	}
}

// A copy that decisions have come to need before an earlier run is tidied up is written.
func TestNeededBeforeTidy(t *testing.T) {
	st := New(t.TempDir(), slog.New(slog.DiscardHandler))
	text := []byte(`["10.1.0.1"]`)
	k := Version{"web.endpoints.json", read.IDOf(text, nil)}
	st.PutDecisions([]byte("it is kept"), map[Version]bool{k: true}, map[Version][]byte{k: text})
	st.removeOrphans(nil)
	st.writeMore()
	if got, err := st.Text(k.Name, k.Sum); string(got) != string(text) {
		t.Errorf("copy %q, %v", got, err)
	}
}
