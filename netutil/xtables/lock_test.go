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
)

// Where another program keeps the lock, the error says which.
func TestLockHolderIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	holder := exec.Command("flock", "--no-fork", path, "sleep", "100")
	if err := holder.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	for deadline := time.Now().Add(10 * time.Second); lockHolder() == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the lock is not seen to be held after 10 s")
		}
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	programs(t, map[string]string{"waits-save": ":", "waits-restore": sleep + " 100 & wait"})
	tool := &Tool{Variant: Legacy}
	if err := tool.find("waits"); err != nil {
		t.Fatal(err)
	}
	var s Script
	s.Set("nat", "SVCP-A", nil)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err = tool.Restore(ctx, &s)
	want := fmt.Sprintf("the lock %s is held by process %d (", path, holder.Process.Pid)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestHolderOf(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat(os.DevNull, &st); err != nil {
		t.Fatal(err)
	}
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
