package file

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
		st := newStore(t.TempDir(), slog.New(slog.DiscardHandler))
		put := func(text string) {
			e := entry{v: versions[text]}
			if e.v != nil {
				e.record = record{sum: e.v.ID, since: time.Unix(1, 0), at: time.Unix(2, 0)}
			}
			st.put(map[string]entry{"x.toml": e})
		}
		put(first)
		st.settle()
		put("b")
		taken := st.next()
		put("c")
		put(first)
		if err := st.write(taken); err != nil {
			t.Fatal(err)
		}
		st.settle()
		if why := st.writeError(); why != "" || !st.onDisk() {
			t.Errorf("%q: %s, pending %v", first, why, slices.Collect(maps.Keys(st.unwritten)))
		}
		r, ok := st.recordOf("x.toml")
		if v := versions[first]; ok != (v != nil) || ok && r.sum != v.ID {
			t.Errorf("%q: recorded %v %x", first, ok, r.sum[:4])
		}
		if !ok {
			continue
		}
		if data, err := st.read("x.toml", r); err != nil || string(data) != first {
			t.Errorf("%q: its copy is %q, %v", first, data, err)
		}
		again := newStore(st.stateDir(), slog.New(slog.DiscardHandler))
		if again.load(); again.records["x.toml"].sum != r.sum {
			t.Errorf("%q: the index has %v, want %v", first, again.records["x.toml"], r)
		}
	}
}

// Nor does the store know what is recorded after an index that could not be written.
func TestPutAfterError(t *testing.T) {
	st := newStore(t.TempDir(), slog.New(slog.DiscardHandler))
	put := func(text string) error {
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.put(map[string]entry{"x.toml": {record: record{sum: v.ID, since: time.Unix(1, 0), at: time.Unix(2, 0)}, v: v}})
		return st.write(st.next())
	}
	check(t, put("a"))
	check(t, os.Remove(st.index()))
	check(t, os.Mkdir(st.index(), 0o700))
	if put("b") == nil {
		t.Fatal("the index is a directory, and was written")
	}
	check(t, os.Remove(st.index()))
	check(t, put("a"))
	again := newStore(st.stateDir(), slog.New(slog.DiscardHandler))
	if again.load(); again.records["x.toml"].sum != read.IDOf([]byte("a"), nil) || st.pending() {
		t.Errorf("the index has %v", again.records)
	}
}

// What could not be written, and is not to be any more, is no trouble.
func TestTroubleEndsWithItsCause(t *testing.T) {
	st := newStore(t.TempDir(), slog.New(slog.DiscardHandler))
	put := func(text string) {
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.put(map[string]entry{"x.toml": {record: record{sum: v.ID, since: time.Unix(1, 0), at: time.Unix(2, 0)}, v: v}})
		for woken(st) {
			st.settle()
		}
	}
	put("a")
	temp := filepath.Join(st.lastgood, tempName)
	check(t, os.MkdirAll(filepath.Join(temp, "x"), 0o700)) // so that no copy can be written
	if put("b"); st.writeError() == "" {
		t.Fatal("a copy was written")
	}
	check(t, os.RemoveAll(temp))
	if put("a"); st.writeError() != "" || !st.onDisk() {
		t.Errorf("still: %s", st.writeError())
	}
}

// woken reports whether the store was told that there is work, and takes that.
func woken(st *store) bool {
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
		st := newStore(dir, slog.New(slog.DiscardHandler))
		st.load()
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		st.put(map[string]entry{"x.toml": {record: record{sum: v.ID, since: time.Unix(1, 0), at: time.Unix(2, 0)}, v: v}})
		check(t, st.write(st.next()))
		return st.history
	}
	add("a")
	h := add("b")
	check(t, os.Rename(h.index(), h.index()+".away"))
	check(t, os.Symlink("index", h.index())) // ELOOP, for root too
	if add("c").said == "" {
		t.Error("nothing says that the history cannot be read")
	}
	if _, err := os.Readlink(h.index()); err != nil {
		t.Errorf("the index was replaced: %v", err)
	}
	check(t, os.Rename(h.index()+".away", h.index()))
	h = add("d")
	var texts []string
	for _, r := range h.list {
		text, err := os.ReadFile(filepath.Join(h.dir, copyName(r.File, r.version().sum)))
		check(t, err)
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
	cut := filepath.Join(s.store.history.dir, copyName("x.toml", read.IDOf([]byte("1"), nil)))
	check(t, os.Remove(cut)) // it is a link
	check(t, os.WriteFile(cut, nil, 0o600))
	s.write("1")
	if text, err := os.ReadFile(cut); err != nil || string(text) != "1" {
		t.Errorf("the history has %q, %v", text, err)
	}
	if names, err := filepath.Glob(filepath.Join(s.store.history.dir, tempName)); err != nil || names != nil {
		t.Errorf("left behind: %q, %v", names, err)
	}
}
