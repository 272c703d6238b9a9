package keep

import (
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A long index is looked through when it has grown, not at every change.
func TestHistoryPruneDue(t *testing.T) {
	for _, tt := range []struct {
		revisions, pruned int
		want              bool
	}{
		{1, 1, true},
		{fewRevisions, fewRevisions, true},
		{fewRevisions + 1, fewRevisions, false},
		{fewRevisions + fewRevisions/16 + 1, fewRevisions, true},
		{100_000, 0, true},
		{100_064, 100_000, false},
	} {
		h := history{list: make([]Revision, tt.revisions), pruned: tt.pruned}
		if got := h.pruneDue(); got != tt.want {
			t.Errorf("%d revisions, %d at the last time: due is %t", tt.revisions, tt.pruned, got)
		}
	}
}

// What only people are told of a service is another version of it, too.
func TestDiffOfNotes(t *testing.T) {
	was := &read.Version{Services: []*source.Service{{Key: source.Key{Namespace: "default", Name: "web"}, Description: "a"}, {Key: source.Key{Namespace: "default", Name: "api"}}}}
	is := &read.Version{Services: []*source.Service{{Key: source.Key{Namespace: "default", Name: "web"}, Description: "b"}, {Key: source.Key{Namespace: "default", Name: "api"}}}}
	if d := DiffOf(was, is); d.Changed != 1 || d.Names[0] != "~default/web" {
		t.Errorf("a new description: %+v", d)
	}
}

// The room is bounded: the oldest versions of all files go first.
func TestHistoryBounded(t *testing.T) {
	h := newHistory(t.TempDir(), nil)
	h.loaded, h.index.whole = true, true
	for i := range 100 {
		r := Revision{Number: i + 1, File: fmt.Sprintf("%d.toml", i%50), Sum: strings.Repeat(fmt.Sprintf("%02x", i), 32), Size: historyBlocks / 10 * blockSize}
		h.list = append(h.list, r)
	}
	needed := map[Version]bool{h.list[3].version(): true}
	h.prune(needed)
	if n := len(h.list); n != 10 || h.list[0].Number != 4 || h.list[1].Number != 92 {
		t.Errorf("%d revisions are left: %+v", n, h.list)
	}
}
