package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// What is asked for crosses the socket of a daemon, and no more than that.
func TestSummaryOfADaemon(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.write("many.toml", many(12))
	r.write("broken.toml", "services = 1\n")
	r.write("web.yaml", "")
	r.ready()
	c := control.NewClient(filepath.Join(r.dir, "run"))
	ask := func(most int) control.Summary {
		t.Helper()
		s, err := c.Summary(t.Context(), most)
		fatal.If(t, err)
		return s
	}
	r.eventually("all of it", func() bool {
		s := ask(1)
		return s.Services == 13 && s.Actions["reject"] == 13 && s.Files["refused"] == 1
	})
	few, all := ask(1), ask(control.All)
	if len(few.Problems) != 1 || len(few.Everything) != 0 || few.Left.Problems+1 != len(all.Problems) || all.Left != (control.Left{}) {
		t.Errorf("of few: %+v\nof all: %+v", few, all)
	}
	if last := all.Problems[len(all.Problems)-1]; last.Subject != "default/web" || last.State != "REJECTS" || last.Reason != "no endpoints" ||
		last.Place != filepath.Join(r.dir, "web.toml")+":1:1" {
		t.Errorf("the last problem: %+v", last)
	}
	if broken := all.Broken[0]; filepath.Base(broken.Path) != "broken.toml" || len(broken.Faults) == 0 {
		t.Errorf("broken file: %+v", broken)
	}
	if w := strings.Join(all.Warnings, "\n"); !strings.Contains(w, "web.yaml: this file is not read") {
		t.Errorf("warnings %s", w)
	}
	for _, p := range all.Problems {
		if strings.Contains(p.Reason, "web.yaml") {
			t.Errorf("a file that is passed over is a problem: %+v", p)
		}
	}
	st, err := c.StatusOf(t.Context(), source.Selection{"web", "svc-1?"})
	if err != nil || len(st.Loop.Services) != 3 || len(st.Sources[0].Files) != 3 {
		t.Errorf("status of some: %+v, %v", st, err)
	}
	if list, err := c.Services(t.Context(), source.Selection{"default/svc-3"}); err != nil || len(list) != 1 || list[0].Name != "svc-3" {
		t.Errorf("one service: %+v, %v", list, err)
	}
	if list, err := c.Services(t.Context(), source.Selection{"web", "number=1?"}); err != nil || len(list) != 3 || list[0].Labels["number"] != "10" {
		t.Errorf("services by label: %+v, %v", list, err)
	}
	if _, err := c.Services(t.Context(), source.Selection{"["}); err == nil || !strings.Contains(err.Error(), `"[" is no name`) {
		t.Errorf("a bad pattern: %v", err)
	}
	if why, err := c.Check(t.Context(), source.Selection{"web"}); err != nil || !strings.HasPrefix(why, "default/web 10.96.0.10:80/tcp REJECTS no endpoints (") {
		t.Errorf("check: %q, %v", why, err)
	}
}

// many returns a file of services without endpoints.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[services]]\nname = \"svc-%d\"\nvips = [\"10.96.1.%d\"]\nports = [{ port = 80 }]\nlabels = { number = \"%d\" }\n", i, i, i)
	}
	return b.String()
}

// A state directory that cannot be written to is told.
func TestUnwritableStateDirectoryIsWarnedOf(t *testing.T) {
	fine := unix.Statfs_t{Bsize: 4096, Blocks: 1000, Bavail: 500, Files: 1000, Ffree: 500}
	kept := func() string { return "" }
	for _, tt := range []struct {
		name string
		edit func(*unix.Statfs_t)
		err  error
		want string
	}{
		{"fine", func(*unix.Statfs_t) {}, nil, ""},
		{"without inodes, as btrfs", func(st *unix.Statfs_t) { st.Files, st.Ffree = 0, 0 }, nil, ""},
		{"full", func(st *unix.Statfs_t) { st.Bavail = 15 }, nil, "is full"},
		{"no inode", func(st *unix.Statfs_t) { st.Ffree = 0 }, nil, "has no room for another file"},
		{"read-only", func(st *unix.Statfs_t) { st.Flags = unix.ST_RDONLY }, nil, "is read-only"},
		{"gone", func(*unix.Statfs_t) {}, unix.ENOENT, "cannot be looked at (no such file or directory)"},
	} {
		s := newStorage(&storage{dir: "/x", claimed: true, unkept: kept, conditions: kept, statfs: func(_ string, st *unix.Statfs_t) error {
			*st = fine
			tt.edit(st)
			return tt.err
		}})
		got, want := strings.Join(s.warnings(), "\n"), ""
		if tt.want != "" {
			want = "state directory /x " + tt.want + ": a restart will not know what is accepted from now on"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", tt.name, got, want)
		}
	}
	full := func() string { return "no space left on device" }
	s := newStorage(&storage{dir: t.TempDir(), unkept: full, statfs: unix.Statfs, conditions: kept})
	if got := strings.Join(s.warnings(), "\n"); !strings.Contains(got, "has no lock") || !strings.Contains(got, "svcproxy.toml cannot be kept, and a restart will not know it: no space") {
		t.Errorf("warnings %q", got)
	}
}

// A state directory that does not answer is told of, and nobody waits for it longer than a moment.
func TestHangingStateDirectoryDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := newStorage(&storage{dir: "/x", claimed: true, unkept: func() string { return "" }, conditions: func() string { return "" }, statfs: func(string, *unix.Statfs_t) error {
			<-release
			return nil
		}})
		begun := time.Now()
		if got := s.warnings(); time.Since(begun) != countsPatience || !slices.Equal(got, []string{"state directory /x does not answer"}) {
			t.Errorf("after %v: %q", time.Since(begun), got)
		}
		close(release)
	})
}

// That settings cannot be kept stays known until they can.
func TestSettingsThatCannotBeKept(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	copyOf := filepath.Join(r.dir, "state", "svcproxy.toml")
	fatal.If(t, errors.Join(os.Remove(copyOf), os.MkdirAll(filepath.Join(copyOf, "in the way"), 0o755)))
	told := func() bool {
		return strings.Contains(strings.Join(r.status().Warnings, "\n"), "the last good svcproxy.toml cannot be kept")
	}
	r.write("svcproxy.toml", "http_address = \"\"\nzone = \"b\"\n")
	r.eventually("told", told)
	fatal.If(t, os.RemoveAll(copyOf))
	r.write("svcproxy.toml", "http_address = \"\"\nzone = \"c\"\n")
	r.eventually("over", func() bool { return !told() })
}
