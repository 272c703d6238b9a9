package control

import (
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source/keep"
)

// What stands in names and owners cannot steer the terminal.
func TestHistoryCannotSteerTheTerminal(t *testing.T) {
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.Local)
	list := []keep.Revision{
		{Number: 4, File: "web.toml", At: at, UID: -1, Diff: keep.Diff{Removed: 9, Names: []string{"-default/a"}}},
		{Number: 3, File: "web.toml", Sum: "00", At: at, UID: 0, Owner: "root", Services: 9, Diff: keep.Diff{Changed: 1, Names: []string{"~default/a"}}, InUse: true},
		{Number: 2, File: "a\x1b[2J.toml", Sum: "00", At: at, UID: 7, Services: 1},
	}
	want := `
VERSION  FILE           ACCEPTED             OWNER   SERVICES  CHANGED
4        web.toml       2026-11-22 10:00:00  -       0         +0 -9 ~0: -default/a ..., the file was removed
3        web.toml       2026-11-22 10:00:00  0/root  9         +0 -0 ~1: ~default/a, in use
2        a\x1b[2J.toml  2026-11-22 10:00:00  7       1         +0 -0 ~0
`
	var b strings.Builder
	if err := WriteHistory(&b, list); err != nil || b.String() != want[1:] {
		t.Errorf("%v\n got:\n%s\nwant:%s", err, b.String(), want)
	}
	b.Reset()
	if err := WriteHistory(&b, nil); err != nil || b.String() != "no version of a service file is kept\n" {
		t.Errorf("%v, %q", err, b.String())
	}
}
