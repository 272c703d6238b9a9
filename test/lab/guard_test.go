//go:build netns

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// guardFiles is how many files of one service each the guard looks after.
const guardFiles = 20

// mayGo is how many of them may go within a minute, by the setting. Where they go in one step none
// does, but a busy machine may keep git waiting for seconds between two files.
const mayGo = guardFiles * 30 / 100

// A guarded is a daemon with [guard] removals = 30, and what its kernel lost.
type guarded struct {
	*env
	mu   sync.Mutex
	lost map[netip.Addr]bool // VIPs of which anything was removed since last asked
}

// TestGuard: whatever happens to the directory of service files, no more leaves the kernel
// than the setting lets go. nft tells of everything that does.
func TestGuard(t *testing.T) {
	t.Parallel()
	m := nftablesMode()
	g := &guarded{env: &env{Lab: newLab(t), mode: m, number: 1}, lost: map[netip.Addr]bool{}}
	g.daemon = newDaemon(t, g.Lab, m)
	g.daemon.Mounts = true
	if err := errors.Join(g.settings("auto"), g.fill(), g.daemon.Start()); err != nil {
		t.Fatalf("%v\n%s", err, g.daemon.LogTail(logLines))
	}
	g.serves(t, guardFiles)
	g.monitor(t)
	for _, phase := range []struct {
		name string
		run  func(*guarded, *testing.T)
	}{
		{"torn git checkout", (*guarded).checkout},
		{"emptied", (*guarded).empty},
		{"emptied one by one", (*guarded).trickle},
		{"unmounted", (*guarded).unmount},
		{"rolled back", (*guarded).rollBack},
		{"applied", (*guarded).applyOnTrial},
		{"confirmed", (*guarded).confirm},
	} {
		if !t.Run(phase.name, func(t *testing.T) { phase.run(g, t) }) {
			t.Fatal(g.daemon.LogTail(logLines))
		}
	}
}

func (g *guarded) settings(apply string) error {
	return g.daemon.Settings(fmt.Sprintf("mode = \"nftables\"\nnode_name = \"node\"\n[guard]\nremovals = 30\napply = %q\n", apply))
}

func (g *guarded) fileName(i int) string { return fmt.Sprintf("web-%d.json", i) }

func (g *guarded) text(i int, h *Host) (string, error) {
	s := g.service(at(h)...)
	s.Name, s.VIPs, s.Ports = fmt.Sprint("web-", i), g.vip(byte(i)).Each(), s.Ports[:1]
	return File(s)
}

// fill writes all files that are missing, or different.
func (g *guarded) fill() (err error) {
	for i := 1; i <= guardFiles; i++ {
		text, e := g.text(i, g.Local[0])
		if old, _ := os.ReadFile(g.daemon.path(g.fileName(i))); string(old) != text {
			err = errors.Join(err, e, g.daemon.WriteFile(g.fileName(i), text))
		}
	}
	return err
}

var address = regexp.MustCompile(`[0-9a-f]+[.:][0-9a-f.:]+`)

// monitor has g note which VIPs lose something in the kernel, until t ends. Sets must exist before: what comes while nft
// monitor starts it may neither read nor hear of, and then it tells nothing of that set's elements.
func (g *guarded) monitor(t *testing.T) {
	t.Helper()
	nft := func(rules string) error { _, err := g.Node.RunInput(rules, "nft", "-f", "-"); return err }
	err := nft("table ip watch { set s { type ipv4_addr; elements = { 192.0.2.7 }; }; }")
	cmd := exec.Command("nft", "-n", "monitor")
	out, e := cmd.StdoutPipe()
	if err = errors.Join(err, e); err == nil {
		err = g.Node.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); g.scan(out) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait() // killed
	})
	probe := netip.MustParseAddr("192.0.2.7")
	err = errors.Join(pace.Poll(expectPatience, func() error { // until it listens
		err := nft("add element ip watch s { 192.0.2.7 }; delete element ip watch s { 192.0.2.7 }")
		if err == nil && !g.takeLost()[probe] {
			err = errors.New("nft monitor does not tell of what is removed")
		}
		return err
	}), nft("delete table ip watch"))
	if err != nil {
		t.Fatal(err)
	}
}

func (g *guarded) scan(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "delete ") {
			continue
		}
		g.mu.Lock()
		for _, text := range address.FindAllString(lines.Text(), -1) {
			if a, err := netip.ParseAddr(text); err == nil {
				g.lost[a] = true
			}
		}
		g.mu.Unlock()
	}
}

// takeLost returns the addresses that lost something since it was last called.
func (g *guarded) takeLost() map[netip.Addr]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lost := g.lost
	g.lost = map[netip.Addr]bool{}
	return lost
}

// lostMost fails if more than n services lost a VIP.
func (g *guarded) lostMost(t *testing.T, n int) {
	t.Helper()
	lost, count := g.takeLost(), 0
	for i := 1; i <= guardFiles; i++ {
		if a := g.vip(byte(i)); lost[a.V4] || lost[a.V6] {
			count++
		}
	}
	if count > n {
		t.Errorf("%d services lost something in the kernel, want %d at most: %v", count, n, lost)
	}
}

// serves waits until this many services answer.
func (g *guarded) serves(t *testing.T, n int) {
	t.Helper()
	err := pace.Poll(expectPatience, func() error {
		answer := 0
		for i := 1; i <= guardFiles; i++ {
			if Ask(Question{From: g.Node, Protocol: source.TCP, To: netip.AddrPortFrom(g.vip(byte(i)).V4, 80)}).Outcome == Answered {
				answer++
			}
		}
		if answer != n {
			return fmt.Errorf("%d services answer, want %d", answer, n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// state waits until this many files have it.
func (g *guarded) state(t *testing.T, want source.FileState, n int) {
	t.Helper()
	g.states(t, want, n, n)
}

// states waits until a number of files from least to most have a state.
func (g *guarded) states(t *testing.T, want source.FileState, least, most int) {
	t.Helper()
	err := pace.Poll(expectPatience, func() error {
		files, err := g.daemon.Files()
		if err != nil {
			return err
		}
		count := 0
		for _, f := range files {
			if f.State == want {
				count++
			}
		}
		if count < least || count > most {
			return fmt.Errorf("%d files are %s, want %d to %d: %v", count, want, least, most, files)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// kept waits until the state directory has all files. That takes as long as the disk does, which nobody waits for, so a
// daemon that is killed before may not know a file that is gone by then.
func (g *guarded) kept(t *testing.T) {
	t.Helper()
	err := pace.Poll(6*expectPatience, func() error {
		text, err := os.ReadFile(filepath.Join(g.daemon.StateDir(), "lastgood", "index"))
		kept := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 5 && strings.Contains(f[4], "web-") { // "-": removed
				kept[f[4]] = f[1] != "-"
			}
		}
		maps.DeleteFunc(kept, func(_ string, is bool) bool { return !is })
		if err == nil && len(kept) != guardFiles {
			err = fmt.Errorf("%d files are kept, want %d", len(kept), guardFiles)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// back puts all files back, after which all is as before.
func (g *guarded) back(t *testing.T) {
	t.Helper()
	if err := g.fill(); err != nil {
		t.Fatal(err)
	}
	g.state(t, source.Accepted, guardFiles)
	g.serves(t, guardFiles)
	g.kept(t)
}

func (g *guarded) shell(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = g.daemon.Dir
	cmd.Env = append(os.Environ(), "dir="+g.daemon.ConfigDir(), fmt.Sprint("pid=", g.daemon.Pid()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// checkout: a branch without the files is checked out for a moment, and for long. On a busy
// machine git may pause after its first files: these go, as long as they are as few as may.
func (g *guarded) checkout(t *testing.T) {
	g.shell(t, gitHome+`git init -q; git add web-*; git commit -q -m a
		git checkout -q -b none; git rm -q --cached web-*; git commit -q -m b; git checkout -q -f main
		for pause in 0 0.5 1; do git checkout -q none; sleep $pause; git checkout -q main; done
		git checkout -q none`)
	g.states(t, source.Held, guardFiles-mayGo, guardFiles)
	g.shell(t, gitHome+`git checkout -q main; rm -rf .git`)
	g.back(t)
	g.lostMost(t, mayGo)
}

// removeAll removes all files in one step, as the daemon sees it: on a busy machine rm may pause
// after its first files.
func (g *guarded) removeAll(t *testing.T) {
	t.Helper()
	if err := g.daemon.Freeze(); err != nil {
		t.Fatal(err)
	}
	g.shell(t, "rm $dir/web-*")
	if err := g.daemon.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// empty: all files are removed; nothing leaves, also when the daemon is killed meanwhile.
func (g *guarded) empty(t *testing.T) {
	g.removeAll(t)
	g.state(t, source.Held, guardFiles)
	if err := errors.Join(g.daemon.Kill(), g.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	g.state(t, source.Held, guardFiles)
	g.serves(t, guardFiles)
	g.back(t)
	g.lostMost(t, 0)
}

// trickle: one after the other goes, for longer than anything waits.
func (g *guarded) trickle(t *testing.T) {
	for i := 1; i <= guardFiles; i++ {
		g.shell(t, "rm $dir/"+g.fileName(i))
		time.Sleep(200 * time.Millisecond)
	}
	_ = pace.Poll(expectPatience, func() error { // until the last one has been decided
		if _, err := os.Stat(g.daemon.path(g.fileName(guardFiles))); err == nil {
			return errors.New("it is there")
		}
		files, err := g.daemon.Files()
		if err == nil && files[g.fileName(guardFiles)].State != source.Held {
			err = errors.New("it is not held")
		}
		return err
	})
	g.lostMost(t, mayGo)
	g.back(t)
}

// unmount: the directory is unmounted, and below it is another one: with files of which
// most are missing, then with none.
func (g *guarded) unmount(t *testing.T) {
	g.shell(t, `cp -a $dir disk; nsenter --target $pid --mount mount --bind $PWD/disk $dir; sleep 1.2`)
	for i := 4; i <= guardFiles; i++ {
		if err := g.daemon.RemoveFile(g.fileName(i)); err != nil {
			t.Fatal(err)
		}
	}
	g.shell(t, `nsenter --target $pid --mount umount $dir`)
	g.state(t, source.Held, guardFiles-3)
	g.back(t)
	g.shell(t, `nsenter --target $pid --mount mount --bind $PWD/disk $dir; sleep 1.2; mkdir kept; mv $dir/* kept
		nsenter --target $pid --mount umount $dir; sleep 3`)
	g.serves(t, guardFiles)
	g.shell(t, `mv kept/* $dir`)
	g.back(t)
	g.lostMost(t, 0)
}

// answersFrom waits until the first service is served by a host.
func (g *guarded) answersFrom(t *testing.T, h *Host) {
	t.Helper()
	g.expect(t, check{from: g.Client, to: g.vip(1), protocols: []source.Protocol{source.TCP}, want: by(h)})
}

func (g *guarded) write(t *testing.T, h *Host) {
	t.Helper()
	text, err := g.text(1, h)
	if err == nil {
		err = g.daemon.WriteFile(g.fileName(1), text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (g *guarded) command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := g.daemon.Command(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// rollBack: the version before is used, after kill -9 too, until the file changes.
func (g *guarded) rollBack(t *testing.T) {
	g.write(t, g.Local[1])
	g.answersFrom(t, g.Local[1])
	var lines []string
	if err := pace.Poll(expectPatience, func() error { // it is written after the kernel is
		lines = strings.Split(g.command(t, "history", g.fileName(1)), "\n")
		if len(lines) < 4 || !strings.Contains(lines[1], "in use") || !strings.Contains(lines[1], "~default/web-1") {
			return fmt.Errorf("history: %q", lines)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	g.command(t, "rollback", g.fileName(1), strings.Fields(lines[2])[0])
	if err := errors.Join(g.daemon.Kill(), g.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	g.answersFrom(t, g.Local[0])
	g.state(t, source.RolledBack, 1)
	g.write(t, g.Remote[0])
	g.answersFrom(t, g.Remote[0])
	g.back(t)
}

// applyOnTrial: what nobody confirms goes back, after kill -9 too.
func (g *guarded) applyOnTrial(t *testing.T) {
	if err := g.settings("manual"); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(expectPatience, func() error { // until the daemon knows
		if !strings.Contains(g.daemon.LogTail(3), "settings changed") {
			return errors.New("settings have not changed")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	g.write(t, g.Local[2])
	g.state(t, source.Held, 1)
	g.answersFrom(t, g.Local[0])
	g.command(t, "apply", "--timeout", "1m")
	g.answersFrom(t, g.Local[2])
	g.command(t, "confirm")
	g.write(t, g.Local[1])
	g.state(t, source.Held, 1)
	g.command(t, "apply", "--timeout", "2s")
	if err := errors.Join(g.daemon.Kill(), g.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	g.state(t, source.RolledBack, 1)
	g.answersFrom(t, g.Local[2])
	if _, err := g.daemon.Command("confirm"); err == nil {
		t.Error("what had gone back was confirmed")
	}
}

// confirm: then it leaves.
func (g *guarded) confirm(t *testing.T) {
	g.removeAll(t)
	g.state(t, source.Held, guardFiles)
	g.command(t, "confirm")
	g.serves(t, 0)
}
