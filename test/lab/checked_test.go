//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// Times of checks. A refusal is noticed at once; the timeout is long, so that none is
// over only because the machine is busy.
var (
	checkInterval = Slow(300 * time.Millisecond)
	checkTimeout  = Slow(2 * time.Second)
)

// checkPatience is how long a result of checks may take to be in the kernel.
var checkPatience = patienceFor(checkTimeout)

// patienceFor returns checkPatience for checks with another timeout: two in a row run into it.
func patienceFor(timeout time.Duration) time.Duration {
	return 3*checkInterval + 2*timeout + expectPatience
}

// tcpCheck asks by connecting.
func tcpCheck() map[string]any {
	return map[string]any{
		"type": "tcp", "interval": checkInterval.String(), "timeout": checkTimeout.String(), "fall": 2, "rise": 1,
	}
}

// checked is the service of the case with a check.
func (e *env) checked(endpoints ...Endpoint) Service {
	s := e.service(endpoints...)
	s.HealthCheck = tcpCheck()
	return s
}

// How an endpoint dies: its programs end, or all of it.
const (
	refuses = "reject with tcp reset"
	silent  = "drop"
)

// dies lets no packet reach the servers of a host any more, and returns what brings it back.
func (e *env) dies(t *testing.T, h *Host, how string, ports ...uint16) (revive func()) {
	t.Helper()
	which := "meta l4proto tcp"
	if len(ports) > 0 {
		which = fmt.Sprintf("tcp dport %d", ports[0])
	}
	rules := "table inet dead { chain in { type filter hook input priority 0; " + which + " tcp flags syn / syn,ack counter; " + which + " " + how + "; "
	if len(ports) == 0 {
		rules += "meta l4proto udp drop; "
	}
	if _, err := h.RunInput(rules+"}; }\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	dead := true
	revive = func() {
		if !dead {
			return
		}
		dead = false
		if _, err := h.Run("nft", "delete", "table", "inet", "dead"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(revive)
	return revive
}

// counted is what nft lists of a counter that something has met.
var counted = regexp.MustCompile(`counter packets [1-9].*`)

// isLeftAlone checks that no connection has been tried to a host since it died.
func (e *env) isLeftAlone(t *testing.T, h *Host) {
	t.Helper()
	rules, err := h.Run("nft", "list", "table", "inet", "dead")
	if err != nil {
		t.Fatal(err)
	}
	if came := counted.FindString(rules); came != "" {
		t.Errorf("connections came to %s: %s", h.Role, came)
	}
}

// endpointStates returns the state of each endpoint of the case's service, by the role of
// its host, and how many targets its frontends have in the kernel.
func (e *env) endpointStates() (states map[string]string, targets []int, err error) {
	out, err := e.daemon.Command("status", "-o", "json", e.name())
	if err != nil {
		return nil, nil, err
	}
	var st struct {
		Loop struct {
			Services []struct {
				Name      string
				Frontends []struct {
					Action  string
					Targets int
				}
				Endpoints []struct{ Address, State string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return nil, nil, fmt.Errorf("%w: %s", err, out)
	}
	states = make(map[string]string)
	for _, s := range st.Loop.Services {
		if s.Name != e.name() {
			continue
		}
		for _, f := range s.Frontends {
			if f.Action == "pending" {
				return nil, nil, fmt.Errorf("a change is pending: %s", out)
			}
			targets = append(targets, f.Targets)
		}
		for _, ep := range s.Endpoints {
			states[ep.Address] = ep.State
		}
	}
	return states, targets, nil
}

// expectTargets waits until every frontend of the case's service has so many targets in the kernel.
func (e *env) expectTargets(t *testing.T, when string, want int) {
	t.Helper()
	err := pace.Poll(checkPatience, func() error {
		states, targets, err := e.endpointStates()
		if err != nil {
			return err
		}
		if len(targets) == 0 || slices.ContainsFunc(targets, func(n int) bool { return n != want }) {
			return fmt.Errorf("targets %v, want %d; endpoints %v", targets, want, states)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}
