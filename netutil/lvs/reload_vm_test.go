//go:build vm

package lvs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// reloading is set for a process that unloads the module, after which it can do nothing else.
const reloading = "SVCPROXY_TEST_RELOAD"

// reloaded is what that process said; nil: it passed.
var reloaded error

// TestMain lets another process unload the module before this one has used it.
func TestMain(m *testing.M) {
	if os.Getenv(reloading) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestModuleIsLoadedAgain$", "-test.v")
		cmd.Env = append(os.Environ(), reloading+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			reloaded = fmt.Errorf("%w\n%s", err, out)
		}
	}
	os.Exit(m.Run())
}

// If the module is removed and loaded again, every message says so from then on: this process cannot reach the new one.
func TestModuleIsLoadedAgain(t *testing.T) {
	if os.Getenv(reloading) == "" {
		fatal.If(t, reloaded)
		return
	}
	c, other := dial(t), &Conn{}
	t.Cleanup(func() { fatal.If(t, other.Close()) })
	addServers(t, c, 1)
	reload(t)
	for range 2 {
		for what, err := range map[string]error{
			"adding":              c.AddServer(t.Context(), Server{Key: web, Scheduler: "wrr"}),
			"on a new connection": other.AddServer(t.Context(), Server{Key: web, Scheduler: "wrr"}),
			"looking":             other.Probe(t.Context()),
		} {
			if !errors.Is(err, ErrReloaded) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if out := run(t, "ipvsadm -S -n"); out != "" {
		t.Errorf("the new module has\n%s", out)
	}
}

// reload removes ip_vs and loads it again. It is in use until the namespaces of
// earlier tests have gone, and their schedulers.
func reload(t *testing.T) {
	t.Helper()
	run(t, "ipvsadm -C")
	const script = `for m in $(cut -d' ' -f1 /proc/modules | grep ^ip_vs_); do rmmod $m; done; rmmod ip_vs`
	fatal.If(t, pace.Poll(time.Minute, func() error {
		out, err := exec.Command("sh", "-c", script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("removing ip_vs: %w\n%s", err, out)
		}
		return err
	}))
	run(t, "modprobe ip_vs")
}
