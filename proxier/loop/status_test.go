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
	"svcproxy.dev/svcproxy/source"
)

// Status returns what the Loop holds of all services, and how its syncs go.
func (l *Loop) Status() Status { return l.StatusOf(nil) }

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
			"all is to be synced": func() { l.Resync() },
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
		l.Resync()
		wants("balance 1, balance 1, balance 1, reject 0")
	})
}

// A frontend that not everybody may use says so.
func TestStatusOfRestricted(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1"))
	svc.SourceRanges = policytest.Prefixes("10.1.0.0/16")
	for _, f := range policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).Frontends {
		if st := frontendStatus(f, true, nil, policy.Subject{Service: svc}, policytest.Node()); !st.Restricted || st.Action != "balance" {
			t.Errorf("%v: %+v", f.Key, st)
		}
	}
}
