//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	envFlushServices = "SVCPROXY_FLUSH_SERVICES" // of TestFlush
	envFlushRuns     = "SVCPROXY_FLUSH_RUNS"     // of each removal

	busyConnections = 50
	burners         = 2 // processes that take all the time they get
)

// debianRules is what Debian's /etc/nftables.conf does when nftables.service is reloaded.
const debianRules = "flush ruleset; table inet filter { chain input { type filter hook input priority filter; }; }"

// removals returns what others do that removes all rules of ours.
func (v variant) removals() []breakage {
	script := func(name, text string) breakage {
		return breakage{name, func(n *node) error {
			_, err := n.Node.RunInput(text+"\n", "nft", "-f", "-")
			return err
		}}
	}
	list := []breakage{script("flush ruleset", "flush ruleset"), script("reload of nftables.service", debianRules)}
	if v == nftables {
		return append(list, script("delete table", "delete table ip svcproxy"))
	}
	if v == legacy {
		list = nil // nft does not see its rules
	}
	return append(list, breakage{"-F and -X in every table", (*node).flushTables})
}

// TestFlush removes all rules under connections that say something all the time, beside busy
// processes, and fails where one of the connections is lost.
func TestFlush(t *testing.T) {
	logMachine(t)
	count, runs := size(envFlushServices, 1_000), size(envFlushRuns, 1)
	if os.Getenv(envSoak) == "1" {
		count, runs = 10_000, 20
	}
	variants := []variant{nftables, nft, legacy}
	if inGuest != nil {
		variants = []variant{ipvs}
	}
	for _, v := range variants {
		t.Run(v.tables(), func(t *testing.T) {
			d := mustDaemon(t, v, count)
			burn(t)
			for _, b := range v.removals() {
				lost, worst := 0, 0
				for range runs {
					n, err := d.removed(t, b, makeServices(count))
					if err != nil {
						t.Fatalf("%s: %v\n%s", b.name, err, d.LogTail(logLines))
					}
					lost, worst = lost+min(n, 1), max(worst, n)
				}
				t.Logf("%d services, %s: connections were lost in %d of %d runs, at most %d of %d", count, b.name, lost, runs, worst, busyConnections)
				if lost > 0 {
					t.Errorf("%s: lost connections", b.name)
				}
			}
		})
	}
}

// burn keeps the processors busy until the test ends.
func burn(t *testing.T) {
	t.Helper()
	for range burners {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
}

// removed removes all rules once, waits until new connections are answered again, and returns how many connections were lost.
func (d *daemon) removed(t *testing.T, b breakage, all []lab.Service) (lost int, err error) {
	h, err := chatter(t, d.node, all)
	if err != nil {
		return 0, err
	}
	if err := b.do(d.node); err != nil {
		return 0, err
	}
	if err := pace.Poll(repairPatience, func() error { return d.node.answers(all) }); err != nil {
		return 0, err
	}
	return h.end(), nil
}

// answers checks that a new connection to some of the services is answered.
func (n *node) answers(all []lab.Service) error {
	for i := range busyConnections {
		to := netip.AddrPortFrom(all[i*len(all)/busyConnections].VIPs[0], vipPort)
		if got := lab.Ask(lab.Question{From: n.Client, Protocol: source.TCP, To: to}); got.Outcome != lab.Answered {
			return fmt.Errorf("a new connection to %s: %s", to, got)
		}
	}
	return nil
}

// A chat are connections that say something all the time.
type chat struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// chatter opens connections to services, which are closed with the test.
func chatter(t *testing.T, n *node, all []lab.Service) (*chat, error) {
	ctx, stop := context.WithCancel(t.Context())
	h := &chat{stop: stop}
	for i := range busyConnections {
		to := netip.AddrPortFrom(all[i*len(all)/busyConnections].VIPs[0], vipPort)
		c, answer := lab.Connect(lab.Question{From: n.Client, Protocol: source.TCP, To: to, Patience: lab.ConnectPatience})
		if c == nil {
			h.end()
			return nil, fmt.Errorf("connecting to %s: %s", to, answer)
		}
		h.wg.Go(func() { h.talk(ctx, c) })
	}
	time.Sleep(100 * time.Millisecond) // all are under way
	return h, nil
}

func (h *chat) talk(ctx context.Context, c *lab.Conn) {
	defer c.Close()
	for ctx.Err() == nil {
		if err := c.Echo(talkPatience); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.errs = append(h.errs, err)
			return
		}
	}
}

// end has each say its last, and returns how many were lost.
func (h *chat) end() int {
	h.stop()
	h.wg.Wait()
	return len(h.errs)
}
