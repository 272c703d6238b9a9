//go:build netns

package hosts

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// svcproxyBinary builds svcproxy once, when the first test needs it.
var svcproxyBinary = sync.OnceValues(func() (string, error) { return lab.Build(buildDir) })

var buildDir string

// soaking is set to do much of what else is done a little.
var soaking = os.Getenv("SVCPROXY_SOAK") == "1"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if buildDir, err = netnstest.TempDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := errors.Join(goleak.Find(), os.RemoveAll(buildDir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// newNetwork returns a network that ends with the test.
func newNetwork(t *testing.T) *lab.Network {
	t.Helper()
	n := lab.NewNetwork()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// newHost makes a host of a network.
func newHost(t *testing.T, n *lab.Network, role string, addrs ...lab.Dual) *lab.Host {
	t.Helper()
	h, err := n.Host(role, addrs...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newDaemon prepares svcproxy on a host, which ends with the test.
func newDaemon(t *testing.T, h *lab.Host, near lab.Dual) *lab.Daemon {
	t.Helper()
	binary, err := svcproxyBinary()
	if err != nil {
		t.Fatal(err)
	}
	d, err := lab.NewDaemonOn(h, near, binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of svcproxy's log on %s:\n%s", h.Role, d.LogTail(30))
		}
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}
