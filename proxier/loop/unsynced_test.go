package loop

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A family is unsynced until its first sync that succeeds, where something of it is to be announced: with it
// comes one frontend of that. A family that the Loop does not have is unsynced for good.
func TestUnsyncedUntilTheFirstSync(t *testing.T) {
	both := []policy.Family{policy.IPv4, policy.IPv6}
	synctest.Test(t, func(t *testing.T) {
		four, six := &kernel{}, &kernel{fail: errors.New("no")}
		l := start(t, four, announcedBy(four), func(c *Config) { c.Backends[policy.IPv6] = six })
		show := func(means source.Means) (list []string) {
			synctest.Wait()
			for _, st := range report.Unsynced(l.Snapshot(), means, both) {
				for _, r := range st.Services {
					list = append(list, fmt.Sprintf("%s %s %d", st.Family, r.Frontends[0].Key.Addr, len(r.Frontends)))
				}
			}
			return list
		}
		expect := func(what string, got []string, want ...string) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		l.Apply(inFile(
			webAt("down", policytest.Balanced("2001:db8::8"), onPort(81), noEndpoints),
			webAt("web", policytest.TwoPorts, policytest.Balanced("2001:db8::9"), policytest.Endpoints("10.0.0.1", "2001:db8::2")),
		))
		expect("before all is read", show(source.BGP), "ipv4 203.0.113.1 1", "ipv6 2001:db8::9 1")
		l.Synced("file")
		expect("while IPv6 fails", show(source.BGP), "ipv6 2001:db8::9 1")
		expect("by L2", show(source.L2))
		l.DrainHost(true)
		expect("while the host is drained", show(source.BGP))
		l.DrainHost(false)
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: &kernel{fail: errors.New("no")}, policy.IPv6: six})
		expect("with another backend of IPv4, which fails", show(source.BGP), "ipv6 2001:db8::9 1")
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: four})
		expect("without a backend of IPv6", show(source.BGP), "ipv6 2001:db8::9 1")
		six.failWith(nil)
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: four, policy.IPv6: six})
		time.Sleep(time.Minute)
		expect("when all is synced", show(source.BGP))
		four.mu.Lock()
		defer four.mu.Unlock()
		four.syncs, six.syncs = nil, nil
	})
}
