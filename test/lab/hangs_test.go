//go:build netns

package lab

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

// A faulty is a daemon in iptables mode one of whose programs can be made to hang, or to do nothing.
type faulty struct {
	*env
	variant string
	dir     string // has the program, and a file that says how it is
}

// prepareFaulty prepares a daemon whose restore of some families is faulty, and does not start it.
func prepareFaulty(t *testing.T, variant string, bases ...string) *faulty {
	m := iptablesMode(variant)
	s := &faulty{env: &env{Lab: newLab(t), mode: m, number: 1}, variant: variant, dir: t.TempDir()}
	s.daemon = newDaemon(t, s.Lab, m)
	s.daemon.Env = []string{"PATH=" + s.dir + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + s.lock()}
	var names []string
	for _, base := range bases {
		names = append(names, base+"-restore", base+"-"+variant+"-restore")
	}
	for _, name := range names {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		const script = "#!/bin/sh\nwhile [ -e %[1]s/hangs ]; do sleep 0.05; done\n[ -e %[1]s/idles ] && [ \"$1\" = --noflush ] && exec cat >/dev/null\nexec %[2]s \"$@\"\n"
		if err := os.WriteFile(filepath.Join(s.dir, name), fmt.Appendf(nil, script, s.dir, program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.prepare(s.Node), s.daemon.Settings("mode = \"iptables\"\n[sync]\nresync_interval = \"1s\"\n")); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *faulty) lock() string { return filepath.Join(s.dir, "lock") }

// become makes the program hang or idle, or neither.
func (s *faulty) become(t *testing.T, how string) {
	t.Helper()
	for _, name := range []string{"hangs", "idles"} {
		path := filepath.Join(s.dir, name)
		err := os.Remove(path)
		if name == how {
			err = os.WriteFile(path, nil, 0o644)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// write writes the service with other endpoints, and waits for nothing.
func (s *faulty) write(t *testing.T, endpoints ...Endpoint) {
	t.Helper()
	if _, err := s.daemon.Write(s.name(), s.service(endpoints...)); err != nil {
		t.Fatal(err)
	}
}

// reports waits until a command says all that is wanted.
func (s *faulty) reports(t *testing.T, want []string, name string, args ...string) {
	t.Helper()
	err := pace.Poll(startPatience, func() error {
		text, err := s.daemon.Command(name, args...)
		if err != nil {
			text += err.Error()
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%s does not say %q:\n%s", name, w, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.daemon.LogTail(logLines))
	}
}

// page waits until a page answers with that code and has that text.
func (s *faulty) page(t *testing.T, path string, code int, text string) {
	t.Helper()
	err := pace.Poll(startPatience, func() error {
		got, body, err := s.Node.Get("http://127.0.0.1:10349" + path)
		if err == nil && (got != code || !strings.Contains(body, text)) {
			err = fmt.Errorf("%s answers %d, want %d and %q", path, got, code, text)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.daemon.LogTail(logLines))
	}
}

// serves checks who answers in each family.
func (s *faulty) serves(t *testing.T, v4, v6 want) {
	t.Helper()
	s.expect(t, check{from: s.Client, to: Dual{V4: s.vip(1).V4}, want: v4}, check{from: s.Client, to: Dual{V6: s.vip(1).V6}, want: v6})
}

// recovers waits until the service is served, also where a family that could not be opened is tried again after 30 s.
func (s *faulty) recovers(t *testing.T, want want) {
	t.Helper()
	err := pace.Poll(2*time.Minute, func() error {
		c := check{from: s.Client, to: s.vip(1), want: want}
		for _, q := range c.questions() {
			if err := s.verify(&q, c.want); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.daemon.LogTail(logLines))
	}
}

// TestProgramThatHangs: while ip6tables-restore hangs, IPv4 goes on, questions are answered, and what is waited for is named.
func TestProgramThatHangs(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			s := prepareFaulty(t, variant, "ip6tables")
			s.become(t, "hangs")
			if err := s.daemon.Launch(); err != nil {
				t.Fatal(err)
			}
			s.page(t, "/livez", 200, "")
			first, second := by(s.Local[0]), by(s.Local[1])
			s.write(t, at(s.Local[0])...)
			s.expect(t, check{from: s.Client, to: Dual{V4: s.vip(1).V4}, want: first})
			s.reports(t, []string{"ipv6 is not in use yet", "ip6tables", "-restore"}, "status", "--problems")
			s.page(t, "/readyz", 200, "")
			s.page(t, "/metrics", 200, `svcproxy_stalled_seconds{ip_family="IPv6"`)
			s.become(t, "")
			s.serves(t, first, first)

			s.become(t, "hangs")
			s.write(t, at(s.Local[1])...)
			s.expect(t, check{from: s.Client, to: Dual{V4: s.vip(1).V4}, want: second})
			s.reports(t, []string{"STALLED", "the sync waits for ip6tables-"}, "status", "--problems")
			s.page(t, "/metrics", 200, `svcproxy_stalled_seconds{ip_family="IPv6",waits_for="ip6tables-`)
			s.reports(t, []string{"stays drained", "the sync waits for ip6tables-"}, "drain", s.Local[1].Addr().V6.String())
			if !strings.Contains(s.daemon.LogTail(logLines), "no progress; waiting") {
				t.Errorf("the log does not say what is waited for:\n%s", s.daemon.LogTail(logLines))
			}
			s.become(t, "")
			if _, err := s.daemon.Command("undrain", s.Local[1].Addr().V6.String()); err != nil {
				t.Error(err)
			}
			s.serves(t, second, second)
		})
	}
}

// TestLockThatIsHeld: status names the process that holds the lock of legacy iptables, at a start too.
func TestLockThatIsHeld(t *testing.T) {
	t.Parallel()
	s := prepareFaulty(t, "legacy", "iptables")
	holder := fmt.Sprintf("the lock %s is held by process %d", s.lock(), os.Getpid())
	s.write(t, at(s.Local[0])...)
	release := s.holdLock(t)
	if err := s.daemon.Launch(); err != nil {
		t.Fatal(err)
	}
	s.page(t, "/livez", 200, "")
	s.reports(t, []string{"is not in use yet", holder}, "status", "--problems")
	release()
	s.serves(t, by(s.Local[0]), by(s.Local[0]))

	release = s.holdLock(t)
	s.write(t, at(s.Local[1])...)
	s.reports(t, []string{"STALLED", holder}, "status", "--problems")
	release()
	s.serves(t, by(s.Local[1]), by(s.Local[1]))
}

// holdLock takes the lock of legacy iptables, until it is released or the test ends.
func (s *faulty) holdLock(t *testing.T) (release func()) {
	t.Helper()
	lock, err := os.OpenFile(s.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { lock.Close() }
}

// TestProgramThatDoesNothing: an iptables-restore that ends without an error and writes nothing makes no family work.
func TestProgramThatDoesNothing(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			s := prepareFaulty(t, variant, "iptables")
			s.become(t, "idles")
			s.write(t, at(s.Local[0])...)
			if err := s.daemon.Launch(); err != nil {
				t.Fatal(err)
			}
			s.page(t, "/livez", 200, "")
			s.reports(t, []string{"ended without an error, and the kernel does not hold"}, "status", "--problems")
			if text, err := s.daemon.Command("status", s.name()); err == nil && strings.Contains(text, s.vip(1).V4.String()+":80/tcp  vip   1/1    balance") {
				t.Errorf("what is not in the kernel is said to serve:\n%s", text)
			}
			s.become(t, "")
			s.recovers(t, by(s.Local[0]))
		})
	}
}

// TestNoFamilyWorks: svcproxy is not ready, however often it has tried, while neither family can be written.
func TestNoFamilyWorks(t *testing.T) {
	t.Parallel()
	s := prepareFaulty(t, "legacy", "iptables", "ip6tables") // where the nft variant cannot be written it does not open
	s.become(t, "idles")
	s.write(t, at(s.Local[0])...)
	if err := s.daemon.Launch(); err != nil {
		t.Fatal(err)
	}
	err := pace.Poll(startPatience, func() error { // beside one that works a family that failed three times would not be waited for
		for _, family := range []string{"ipv4", "ipv6"} {
			if n := strings.Count(s.daemon.LogTail(math.MaxInt), `"sync failed" family=`+family); n < 4 {
				return fmt.Errorf("%s failed %d times, want 4", family, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.daemon.LogTail(logLines))
	}
	s.page(t, "/readyz", 503, "not ready")
	s.reports(t, []string{"  starting  ", "no sync yet"}, "status")
	const ready = "first sync complete" // with READY=1 for systemd
	if log := s.daemon.LogTail(math.MaxInt); strings.Contains(log, ready) {
		t.Errorf("the log says %q:\n%s", ready, log)
	}
	s.become(t, "")
	s.page(t, "/readyz", 200, "")
	s.serves(t, by(s.Local[0]), by(s.Local[0]))
}
