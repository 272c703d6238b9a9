//go:build netns

package history

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// modes are those that this kernel can be tried in.
var modes = []string{nftables, "iptables-nft", iptablesLegacy}

// builds are two programs of the same sources.
var builds = sync.OnceValues(func() ([]string, error) {
	dir, err := netnstest.TempDir()
	if err != nil {
		return nil, err
	}
	one, err := lab.Build(dir)
	if other := os.Getenv("SVCPROXY_JUDGE_OTHER"); err == nil && other != "" {
		return []string{one, other}, nil
	}
	if err != nil {
		return nil, err
	}
	other, err := lab.Build(dir, "-tags=nokubernetes")
	return []string{one, other}, err
})

// TestHistory: under random faults every client meets what is allowed. The modes are tried beside each other: most of them
// is waiting.
func TestHistory(t *testing.T) {
	binaries, err := builds()
	must(t, err)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var daemon *lab.Daemon
			s := Run(t, mode, func(t *testing.T) *Site {
				s := newSite(t, mode)
				p, err := NewSvcproxy(s, binaries)
				must(t, err)
				t.Cleanup(func() { check(t, p.Remove()) })
				s.Balancer, s.Kinds, s.Lanes = p, Kinds, p.Lanes()
				s.Arrange, s.Takes = func(seed uint64) (string, error) { return p.Arrange(s, seed) }, p.takes
				s.Log = func() string { return p.LogTail(2000) }
				must(t, errors.Join(s.PutAll(), p.Start()))
				if daemon == nil {
					daemon = p.Daemon
				}
				return s
			})
			if s != nil && !t.Failed() {
				check(t, s.asFresh(t.Context(), daemon))
			}
		})
	}
}

func newSite(t *testing.T, mode string) *Site {
	t.Helper()
	s, err := NewSite(mode)
	must(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// asFresh ends svcproxy and starts it from nothing: the kernel has the same then, and no object of svcproxy in between.
func (s *Site) asFresh(ctx context.Context, d *lab.Daemon) error {
	quiet(ctx)
	foreign, own, err := lab.Snapshot(s.Node)
	if err := errors.Join(err, d.Stop()); err != nil {
		return err
	}
	if out, err := d.Command("cleanup"); err != nil {
		return fmt.Errorf("cleanup: %w: %s", err, out)
	}
	others, left, err := lab.Snapshot(s.Node)
	if err = errors.Join(err, lab.Difference(foreign, others)); err != nil {
		return fmt.Errorf("what others have, after cleanup: %w", err)
	}
	if len(left) > 0 {
		return fmt.Errorf("left after cleanup: %q", left)
	}
	if err := errors.Join(d.Forget(), d.Start()); err != nil {
		return err
	}
	return pace.Poll(freshPatience, func() error {
		_, fresh, err := lab.Snapshot(s.Node)
		if err = errors.Join(err, lab.Difference(own, fresh)); err != nil {
			return fmt.Errorf("what svcproxy had in the kernel, and what it makes there from nothing: %w", err)
		}
		return nil
	})
}

// freshPatience is how long checks may take to know all endpoints.
const freshPatience = 10 * time.Second

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
