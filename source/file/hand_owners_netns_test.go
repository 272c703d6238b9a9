//go:build netns

package file

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/source/read"
)

// Whose file it is, is asked of the file that a link leads to, and again when it changes hands. Only root can give
// files away.
func TestSharesOfUsers(t *testing.T) {
	const teamA, teamB = 61001, 61002
	h := newHost(t)
	h.real, h.owners = true, func() []read.Owner { return ownedBy("61001", "10.96.1.0/24") }
	far := t.TempDir()
	check(t, os.Chmod(h.dir, 0o755))
	const text = "[[services]]\nname = \"a\"\nvips = [\"10.96.1.1\"]\nports = [{ port = 80 }]\nendpoints = [\"192.0.2.1\"]\n"
	for name, more := range map[string]string{"small": "", "large": strings.Repeat("# padding\n", largeSize/10+1)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h.T, h.fixture.T = t, t
				is := func(when, state, fault string) {
					t.Helper()
					got := h.faults()
					h.src.mu.Lock()
					defer h.src.mu.Unlock()
					if now := string(h.src.files["a.toml"].state); now != state || !strings.Contains(got, fault) || fault == "" && strings.Contains(got, "may claim nothing") {
						t.Errorf("%s: the file is %s, want %s; faults %s, want %q", when, now, state, got, fault)
					}
				}
				give := func(path string, uid int) func() { return func() { check(t, os.Lchown(path, uid, 0)) } }
				const other = "has a file of this name and of user "
				write(t, far+"/real.toml", text+more)
				give(far+"/real.toml", teamA)()
				check(t, os.Symlink(far+"/real.toml", h.path("a.toml")))
				h.start()
				moment()
				is("a link of root", "accepted", "")
				h.change(give(h.path("a.toml"), teamB))
				is("a link of another in a directory of root", "accepted", "")
				h.change(func() { check(t, os.Chmod(h.dir, 0o777|os.ModeSticky)) })
				h.change(func() { write(t, far+"/real.toml", text+more+"\n"); give(far+"/real.toml", teamA)() })
				is("where others make links", "stale", "belongs neither to root nor to the owner of the file")
				h.change(give(h.path("a.toml"), teamA))
				is("a link of the owner", "accepted", "")
				h.change(give(far+"/real.toml", teamB))
				is("a file of the other team", "stale", "belongs neither to root nor")
				h.change(give(h.path("a.toml"), 0))
				is("by a link of root", "stale", other+"61002")
				h.change(func() { check(t, os.Remove(h.path("a.toml"))); check(t, os.Link(far+"/real.toml", h.path("a.toml"))) })
				is("by a hard link", "stale", other+"61002")
				h.change(give(far+"/real.toml", teamA))
				is("given back", "accepted", "")
				h.change(func() { check(t, os.Chmod(far+"/real.toml", 0o664)) })
				is("that its group may write", "accepted", "")
				h.change(func() { check(t, os.Chmod(far+"/real.toml", 0o646)) })
				is("that everybody may write", "stale", "others than its owner may write this file")
				h.change(func() { check(t, os.Chmod(far+"/real.toml", 0o664)); give(far+"/real.toml", 0)() })
				is("a file of root that its group may write", "stale", "others than its owner may write this file")
				h.change(func() { check(t, os.Chmod(far+"/real.toml", 0o644)) })
				is("a file of root", "stale", other+"0")
				h.stop()
				h.checkStore()
				check(t, os.Remove(h.path("a.toml")))
				check(t, os.Chmod(h.dir, 0o755))
			})
		})
	}
}
