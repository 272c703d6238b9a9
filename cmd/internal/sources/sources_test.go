package sources

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

// A file that parses is not in use as it stands where another holds what it claims.
func TestFileWithTakenClaimsIsNotInUse(t *testing.T) {
	read, refused := time.Unix(100, 0), time.Unix(200, 0)
	broken := source.Fault{Msg: "unknown key"}
	taken := source.Fault{Msg: "taken"}
	files := source.Status{Source: "file", Files: []source.FileStatus{
		{Path: "fine", State: source.Accepted, Since: read, Services: 1},
		{Path: "kept", State: source.Accepted, Since: read, Services: 1},
		{Path: "new", State: source.Accepted, Since: read, Services: 1},
		{Path: "broken", State: source.Stale, Since: read, Services: 1, Faults: []source.Fault{broken}},
	}}
	id := func(name string) source.UnitID { return source.UnitID{Source: "file", Name: name} }
	got := AsUsed(files, []claims.Refusal{
		{Unit: id("kept"), Since: refused, Stale: true, Faults: []source.Fault{taken}},
		{Unit: id("new"), Since: refused, Faults: []source.Fault{taken}},
		{Unit: id("broken"), Since: refused, Faults: []source.Fault{taken}},
		{Unit: source.UnitID{Source: "kubernetes", Name: "fine"}, Since: refused, Faults: []source.Fault{taken}},
	})
	want := []source.FileStatus{
		{Path: "fine", State: source.Accepted, Since: read, Services: 1},
		{Path: "kept", State: source.Stale, Since: refused, Services: 1, Faults: []source.Fault{taken}},
		{Path: "new", State: source.Refused, Since: refused, Faults: []source.Fault{taken}},
		{Path: "broken", State: source.Refused, Since: refused, Faults: []source.Fault{broken, taken}},
	}
	if diff := cmp.Diff(want, got.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
