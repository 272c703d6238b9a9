package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Status returns what the Loop holds of all services, and how its syncs go.
func (l *Loop) Status() report.Status { return report.StatusOf(l.Snapshot(), nil) }

func (l *Loop) Summary(most int) report.Summary { return report.Summarize(l.Snapshot(), most) }

func (l *Loop) Announced() []report.AnnouncedAddress { return report.Announced(l.Snapshot(), nil) }

// Status claims nothing that the kernel does not hold.
func TestStatusOfWhatTheKernelHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Sources = []string{"file", "kubernetes"} })
		wants := func(waiting string, actions ...string) {
			t.Helper()
			synctest.Wait()
			st := l.Status()
			if got := st.Families[0].Waiting; got != waiting {
				t.Errorf("waits for %q, want %q", got, waiting)
			}
			for i, want := range actions {
				if got := st.Services[i].Frontends[0].Action; got != want {
					t.Errorf("%s: %s, want %s", st.Services[i].Name, got, want)
				}
			}
		}
		x, y := policytest.File("a", "x 10.96.0.1:80"), policytest.File("b", "y 10.96.0.2:80")
		l.Apply(policytest.Set(x, y))
		l.Synced("file")
		wants("kubernetes", "pending", "pending")
		l.Synced("kubernetes")
		wants("", "reject", "reject")

		k.failWith(errors.New("no"))
		served := *x.Services[0]
		served.Endpoints = []source.Endpoint{policytest.Endpoint("10.0.0.1")}
		x.Services = []*source.Service{&served}
		l.Apply(policytest.Set(x))
		wants("", "pending", "reject")
		k.failWith(nil)
		time.Sleep(time.Minute)
		wants("", "balance", "reject")

		for name, disturb := range map[string]func(){
			"others flushed it":   func() { l.Repair(policy.IPv4) },
			"all is to be synced": func() { l.FullSync() },
			"the host changed":    func() { l.SetNode(policytest.Node(func(n *policy.Node) { n.MarkBit = 3 })) },
		} {
			t.Log(name)
			k.failWith(errors.New("no"))
			disturb()
			time.Sleep(time.Minute)
			wants("", "pending", "pending")
			k.failWith(nil)
			time.Sleep(time.Minute)
			wants("", "balance", "reject")
		}
	})
}

// What a mode has set aside is not called balanced.
func TestStatusOfWhatIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(addr string) policy.FrontendKey {
			return policy.FrontendKey{Addr: netip.MustParseAddr(addr), Protocol: source.TCP, Port: 80}
		}
		k := &kernel{unserved: &proxier.PartialError{N: 3, Err: errors.New("no such scheduler"), Frontends: map[policy.FrontendKey]bool{
			key("10.96.0.1"): true, key("10.96.0.2"): false, key("10.96.0.4"): true,
		}}}
		l := start(t, k)
		u := policytest.File("a", "a 10.96.0.1:80", "b 10.96.0.2:80", "c 10.96.0.3:80", "d 10.96.0.4:80")
		for _, s := range u.Services[:3] {
			s.Endpoints = []source.Endpoint{policytest.Endpoint("10.0.0.1")}
		}
		l.Apply(policytest.Set(u))
		l.Synced("file")
		wants := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, s := range l.Status().Services {
				got = append(got, fmt.Sprintf("%s %d", s.Frontends[0].Action, s.Frontends[0].Targets))
			}
			if text := strings.Join(got, ", "); text != want {
				t.Errorf("status says %s\nwant %s", text, want)
			}
		}
		wants("unserved 0, in part 1, balance 1, reject 0")
		k.mu.Lock()
		k.unserved = nil
		k.mu.Unlock()
		l.FullSync()
		wants("balance 1, balance 1, balance 1, reject 0")
	})
}

// Status shows doubts with the service, and asks again who listens.
func TestStatusShowsDoubts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listeners []report.Listener
		l := start(t, &kernel{}, func(c *Config) { c.Surroundings.Listening = func() []report.Listener { return listeners } })
		l.Apply(policytest.Set(policytest.File("a", "x 192.0.2.1:22")))
		l.Synced("file")
		synctest.Wait()
		for _, want := range []int{1, 2} { // that the address is one of this host is one already
			if got := l.Status().Services[0].Warnings; len(got) != want {
				t.Errorf("warnings %q, want %d", got, want)
			}
			listeners = []report.Listener{{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("0.0.0.0:22")}}
		}
	})
}

// Status says how packets get to endpoints, and asks for the way to them each time.
func TestStatusOfAnsweringEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := netip.Addr{}
		l := start(t, &kernel{}, func(c *Config) { c.Surroundings.Router = func(netip.Addr) (netip.Addr, error) { return router, nil } })
		u := policytest.File("a", "x 10.96.0.1:80", "y 10.96.0.2:80")
		x := *u.Services[0]
		x.Forward = source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GUE, Port: 6080}
		y := *u.Services[1]
		y.Forward.Method, y.Endpoints = source.ForwardDirect, []source.Endpoint{policytest.Endpoint("10.0.0.1")}
		u.Services = []*source.Service{&x, &y}
		l.Apply(policytest.Set(u))
		l.Synced("file")
		synctest.Wait()
		for _, warnings := range []int{0, 1} {
			st := l.Status()
			for i, want := range []string{"tunnel gue 6080", "direct"} {
				if got := st.Services[i].Frontends[0].Forward; got != want {
					t.Errorf("%s: forward %q, want %q", st.Services[i].Name, got, want)
				}
			}
			if got := st.Services[1].Warnings; len(got) != warnings {
				t.Errorf("warnings %q, want %d", got, warnings)
			}
			router = netip.MustParseAddr("192.0.2.254")
		}
	})
}
