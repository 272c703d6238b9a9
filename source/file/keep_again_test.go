package file

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"
)

// A file that is as it was before while the disk takes what it was in between is recorded as it is, whatever the
// store knew when it was told: the version, or that there was none.
func TestPutWhileWriting(t *testing.T) {
	versions := map[string]*version{"": nil}
	for _, text := range []string{"a", "b", "c"} {
		versions[text] = &version{id: idOf([]byte(text), nil), data: []byte(text), size: 1}
	}
	for _, first := range []string{"a", ""} {
		st := newStore(t.TempDir(), slog.New(slog.DiscardHandler))
		put := func(text string) {
			e := entry{v: versions[text]}
			if e.v != nil {
				e.record = record{sum: e.v.id, since: time.Unix(1, 0), at: time.Unix(2, 0)}
			}
			st.put(map[string]entry{"x.toml": e})
		}
		put(first)
		for st.writeMore(true) {
		}
		put("b")
		taken := st.next()
		put("c")
		put(first)
		if err := st.write(taken, true); err != nil {
			t.Fatal(err)
		}
		for st.writeMore(true) {
		}
		if why := st.writeError(); why != "" || st.hasPending() {
			t.Errorf("%q: %s, pending %v", first, why, slices.Collect(maps.Keys(st.pending)))
		}
		r, ok := st.recordOf("x.toml")
		if v := versions[first]; ok != (v != nil) || ok && r.sum != v.id {
			t.Errorf("%q: recorded %v %x", first, ok, r.sum[:4])
		}
		if !ok {
			continue
		}
		if data, err := st.read("x.toml", r); err != nil || string(data) != first {
			t.Errorf("%q: its copy is %q, %v", first, data, err)
		}
		again := newStore(st.stateDir(), slog.New(slog.DiscardHandler))
		if again.loadIndex(); again.records["x.toml"].sum != r.sum {
			t.Errorf("%q: the index has %v, want %v", first, again.records["x.toml"], r)
		}
	}
}
