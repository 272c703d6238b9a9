package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// holdLock holds a lock of this test's own.
func holdLock(t *testing.T) (path string, pid int) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	f, err := os.Create(path)
	fatal.If(t, err)
	t.Cleanup(func() { f.Close() })
	fatal.If(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return path, os.Getpid()
}

// Where another program keeps the lock, the error says which.
func TestLockHolderIsNamed(t *testing.T) {
	path, held := holdLock(t)
	sleep, err := exec.LookPath("sleep")
	fatal.If(t, err)
	waits := sleep + " 100 & wait"
	programs(t, map[string]string{"waits": `[ "$1 $2" = "-w 60" ] || exit 0; ` + waits, "waits-save": ":", "waits-restore": waits})
	tool := &Tool{Variant: Legacy}
	fatal.If(t, tool.find("waits"))
	var s Script
	s.Set("nat", "SVCP-A", nil)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err = tool.Restore(ctx, &s)
	want := fmt.Sprintf("the lock %s is held by process %d (", path, held)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = tool.ReadChains(ctx, "nat", []string{"OUTPUT"}, "SVCP-")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Errorf("reading a chain: got %v, want %s", err, want)
	}
}

// A probe whose context ends gives up waiting for the lock, and says who holds it.
func TestProbeDoesNotWaitForever(t *testing.T) {
	path, held := holdLock(t)
	sleep, err := exec.LookPath("sleep")
	fatal.If(t, err)
	// As iptables does: it waits for the lock for as many seconds as the last argument says.
	iptables := `[ "$1" = --version ] && { echo "iptables v1.8.9 (legacy)"; exit; }
for last; do :; done
` + sleep + ` "$last"
echo "Another app is currently holding the xtables lock. Stopped waiting after ${last}s." >&2
exit 4`
	programs(t, map[string]string{"locked": iptables, "locked-save": ":", "locked-restore": iptables})
	tool := &Tool{Variant: Legacy}
	fatal.If(t, tool.find("locked"))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	feature := []Feature{{Name: "tcp", Table: "nat", Words: []string{"-p", "tcp"}}}
	ended := make(chan error, 1)
	go func() {
		_, err := tool.Probe(ctx, "SVCP-PROBE", feature, feature)
		ended <- err
	}()
	select {
	case err := <-ended:
		want := fmt.Sprintf("the lock %s is held by process %d (", path, held)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	case <-time.After(pace.Scale(30 * time.Second)):
		t.Error("it goes on waiting")
	}
}

// A host that lacks nothing starts no more programs than it must, of which a start waits: for each family one that says
// its version, one that adds all rules, and one that removes them.
func TestProbeStartsFewPrograms(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	const version = `[ "$1" = --version ] && echo "iptables v1.8.9 (legacy)"; :`
	note := "echo ${0##*/} $1 >>" + log + "\n"
	programs(t, map[string]string{"known": note + version, "known-save": note, "known-restore": note})
	tool := &Tool{Variant: Legacy}
	fatal.If(t, tool.find("known"))
	features := []Feature{{"tcp", "nat", []string{"-p", "tcp"}}, {"udp", "filter", []string{"-p", "udp"}}}
	if missing, err := tool.Probe(t.Context(), "SVCP-PROBE", features, features); err != nil || len(missing) > 0 {
		t.Fatalf("missing %q, error %v", missing, err)
	}
	text, err := os.ReadFile(log)
	if want := "known --version\nknown-restore --noflush\nknown-restore --noflush\n"; err != nil || string(text) != want {
		t.Errorf("started were %q, error %v, want %q", text, err, want)
	}
}

func TestHolderOf(t *testing.T) {
	var st unix.Stat_t
	fatal.If(t, unix.Stat(os.DevNull, &st))
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for _, tt := range []struct {
		locks string
		want  int
	}{
		{"", 0},
		{"1: FLOCK  ADVISORY  WRITE 708 00:19:1226 0 EOF\n", 0},
		{"1: POSIX  ADVISORY  WRITE 708 " + file + " 0 EOF\n", 0},
		{"1: FLOCK  ADVISORY  WRITE 708 00:19:1226 0 EOF\n2: FLOCK  ADVISORY  WRITE 709 " + file + " 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 710 " + file + " 0 EOF\n", 709},
		{"2: FLOCK  ADVISORY  WRITE -1 " + file + " 0 EOF\n", -1},
	} {
		if got := holderOf([]byte(tt.locks), &st); got != tt.want {
			t.Errorf("%q: got %d, want %d", tt.locks, got, tt.want)
		}
	}
}
