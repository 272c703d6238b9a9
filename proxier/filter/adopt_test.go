package filter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// noSockets makes the process unable to open any for the time of do.
func noSockets(t *testing.T, do func()) {
	t.Helper()
	var was unix.Rlimit
	fatal.If(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: was.Max}))
	defer func() {
		fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	}()
	do()
}

// Where connections cannot be marked a sync goes on, and says so once.
func TestConnectionsCannotBeMarked(t *testing.T) {
	var warned bytes.Buffer
	k := newKernel(policy.IPv4, &xtables.Tool{}, nil)
	k.SetLog(slog.New(slog.NewTextHandler(&warned, nil)))
	st := backendtest.NewWorld(policy.IPv4).State
	noSockets(t, func() {
		for range 2 {
			if err := k.adoptOrWarn(context.Background(), st); err != nil {
				t.Error(err)
			}
		}
		ended, end := context.WithCancel(context.Background())
		end()
		if err := k.adoptOrWarn(ended, st); !errors.Is(err, context.Canceled) && !errors.Is(err, unix.EMFILE) {
			t.Errorf("context ended: got %v", err)
		}
	})
	if n := strings.Count(warned.String(), "too many open files"); n != 1 {
		t.Errorf("warned %d times:\n%s", n, &warned)
	}
}
