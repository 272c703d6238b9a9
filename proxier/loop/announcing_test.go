package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A network writes what it is told between the syncs of a kernel.
type network struct {
	*kernel
	without string // why BGP is not there
	deaf    map[policy.Family]string
}

func (n *network) Announce(_ policy.Family, changes []announce.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range changes {
		switch {
		case ch.Means != 0:
			n.syncs = append(n.syncs, fmt.Sprintf("%s by %s", ch.Addr, ch.Means))
		case ch.Serves:
			n.syncs = append(n.syncs, fmt.Sprintf("%s drained", ch.Addr))
		case ch.Wanted:
			n.syncs = append(n.syncs, fmt.Sprintf("%s removed", ch.Addr))
		default:
			n.syncs = append(n.syncs, fmt.Sprintf("%s lost", ch.Addr))
		}
	}
}

func (n *network) Unavailable(source.Means) string { return n.without }

func (n *network) Unheard(fam policy.Family) string { return n.deaf[fam] }

func (n *network) Unanswered() map[netip.Addr]string {
	return map[netip.Addr]string{netip.MustParseAddr("203.0.113.4"): "no link answers for it"}
}

// announcing runs a test in a synctest bubble with a Loop that announces, and its kernel.
func announcing(t *testing.T, test func(t *testing.T, k *kernel, l *Loop)) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		test(t, k, start(t, k, announcedBy(k)))
	})
}

func announcedBy(k *kernel) func(*Config) {
	return func(c *Config) { c.Announcer = &network{kernel: k} }
}

// webAt is a service that is announced, with an endpoint.
func webAt(name string, edit ...func(*source.Service)) *source.Service {
	return policytest.Service(append([]func(*source.Service){func(s *source.Service) { s.Name = name }, policytest.ByBGP, policytest.External, policytest.Endpoints("10.0.0.1")}, edit...)...)
}

// inFile is a file of services.
func inFile(services ...*source.Service) source.Changes {
	return policytest.Set(source.Unit{ID: source.UnitID{Source: "file", Name: "a"}, Services: services})
}

func onPort(n uint16) func(*source.Service) {
	return func(s *source.Service) { s.Ports[0].Port = n }
}

func noEndpoints(s *source.Service) { s.Endpoints = nil }

// Addresses are announced after the sync that serves them, and withdrawn before the one that ends that.
func TestAnnounceAroundSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k, announcedBy(k))
		l.Apply(inFile(webAt("web")))
		l.Synced("file")
		time.Sleep(500 * time.Millisecond)
		k.expect(t)
		time.Sleep(time.Second)
		k.expect(t, "full", "203.0.113.1 by bgp")
		l.Apply(inFile(webAt("web", func(s *source.Service) { s.Endpoints = append(s.Endpoints, policytest.Endpoint("10.0.0.2")) })))
		time.Sleep(2 * time.Second)
		k.expect(t, "web")
		l.Apply(inFile(webAt("web", func(s *source.Service) { s.Endpoints[0] = policytest.Endpoint("10.0.0.1 notready") })))
		synctest.Wait()
		k.expect(t, "203.0.113.1 lost")
		time.Sleep(2 * time.Second)
		k.expect(t, "web")
		l.Apply(inFile(webAt("web")))
		time.Sleep(2 * time.Second)
		k.expect(t, "web", "203.0.113.1 by bgp")
		l.Apply(inFile())
		time.Sleep(2 * time.Second)
		k.expect(t, "203.0.113.1 removed", "web")
	})
}

// A sync that fails announces nothing new, and takes nothing back that is still wanted.
func TestAnnounceDespiteFailures(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.Apply(inFile(webAt("web")))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
		k.failWith(errors.New("no"))
		l.Apply(inFile(webAt("web", policytest.Endpoints("10.0.0.2")), webAt("other", onPort(81), func(s *source.Service) { s.ExternalIPs = policytest.Addrs("203.0.113.2") })))
		k.expect(t, "failed")
		l.Apply(inFile(webAt("web", noEndpoints), webAt("other", onPort(81), func(s *source.Service) { s.ExternalIPs = policytest.Addrs("203.0.113.2") })))
		k.expect(t, "203.0.113.1 removed")
		k.failWith(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.mu.Lock()
		got := slices.DeleteFunc(k.syncs, func(s string) bool { return s == "failed" || s == "" })
		k.mu.Unlock()
		if want := []string{"full", "203.0.113.2 by bgp"}; !slices.Equal(got[:2], want) {
			t.Errorf("after the failure: %q, want %q first", got, want)
		}
	})
}

// What is not to be announced any more, and goes on being served, is told apart.
func TestWithdrawnAddressesAreReportedApart(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.Apply(inFile(webAt("web", policytest.Announce(source.BGP|source.L2))))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp,l2")
		l.Apply(inFile(webAt("web", policytest.Announce(source.L2))))
		k.expect(t, "203.0.113.1 by l2", "web")
		l.Apply(inFile(webAt("web", policytest.Announce(0))))
		k.expect(t, "203.0.113.1 drained", "web")
	})
}

// Under policy local an address whose endpoints here terminate goes while others have ready ones, and this host
// goes on serving. It comes back where the others are gone.
func TestAnnounceWhileLeaving(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.Apply(inFile(webAt("web", policytest.ExternalLocal, noEndpoints, policytest.Endpoints("10.0.0.1 @here", "10.0.0.2"))))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
		l.Apply(inFile(webAt("web", policytest.ExternalLocal, noEndpoints, policytest.Endpoints("10.0.0.1 @here terminating", "10.0.0.2"))))
		k.expect(t, "203.0.113.1 drained", "web")
		l.Apply(inFile(webAt("web", policytest.ExternalLocal, noEndpoints, policytest.Endpoints("10.0.0.1 @here terminating"))))
		k.expect(t, "web", "203.0.113.1 by bgp")
	})
}

// An address of several services is announced while one of them serves it, and what the first does not
// want any more is no loss.
func TestAnnounceShared(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.Apply(inFile(webAt("a"), webAt("b", onPort(81)), webAt("c", onPort(82), func(s *source.Service) { s.Announce = 0 })))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
		l.Apply(inFile(webAt("b", onPort(81)), webAt("c", onPort(82), func(s *source.Service) { s.Announce = 0 })))
		k.expect(t, "a")
		l.Apply(inFile(webAt("b", onPort(81), func(s *source.Service) { s.Endpoints[0].Ready, s.Endpoints[0].Serving = false, false }), webAt("c", onPort(82), func(s *source.Service) { s.Announce = 0 })))
		k.expect(t, "203.0.113.1 lost", "b")
	})
}

// A host that is drained announces nothing, and what it served meanwhile again afterwards.
func TestAnnounceNothingWhileDrained(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.DrainHost(true)
		l.Apply(inFile(webAt("web")))
		l.Synced("file")
		k.expect(t, "full")
		if got := l.Announced(); len(got) != 1 || got[0].Withheld != policy.HostDrained.String() {
			t.Errorf("drained: %+v", got)
		}
		l.DrainHost(false)
		k.expect(t, "203.0.113.1 by bgp")
		l.DrainHost(true)
		k.expect(t, "203.0.113.1 drained")
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: k, policy.IPv6: &kernel{}}) // a family that comes while the host is drained
		l.Apply(inFile(webAt("web", policytest.Balanced("2001:db8::9"), policytest.Endpoints("2001:db8::2"))))
		k.expect(t)
		l.DrainHost(false)
		synctest.Wait()
		slices.Sort(k.syncs) // families are told of it at the same time
		k.expect(t, "2001:db8::9 by bgp", "203.0.113.1 by bgp")
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: k})
		k.expect(t, "2001:db8::9 removed")
	})
}

// What a backend cannot make is not announced, until it can.
func TestAnnounceWhatTheKernelLacks(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		svc := webAt("web")
		lacks := func(whole bool) *proxier.PartialError {
			key := policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).Frontends[0].Key
			return &proxier.PartialError{N: 1, Err: errors.New("default/web: another has it"), Frontends: map[policy.FrontendKey]bool{key: whole}}
		}
		l.Apply(inFile(svc))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
		k.unserve(lacks(false))
		l.FullSync()
		k.expect(t, "full")
		k.unserve(lacks(true))
		l.FullSync()
		k.expect(t, "full", "203.0.113.1 lost")
		if got := l.Announced()[0]; got.Reason != "default/web: another has it" || got.Withheld != "unserved" {
			t.Errorf("%+v", got)
		}
		k.unserve(nil)
		l.FullSync()
		k.expect(t, "full", "203.0.113.1 by bgp")
	})
}

func (k *kernel) unserve(e *proxier.PartialError) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unserved = e; e == nil {
		k.unserved = nil
	}
}

// What is announced is told with the services that ask for it, and what is not with the reason.
func TestAnnouncedNamesServicesAndReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		net := &network{kernel: k}
		l := start(t, k, func(c *Config) { c.Announcer = net })
		l.Apply(inFile(
			webAt("a", policytest.TwoPorts, policytest.OtherPort(0)),
			webAt("b", onPort(81)),
			webAt("down", onPort(82), noEndpoints, func(s *source.Service) {
				s.ExternalIPs = policytest.Addrs("203.0.113.2")
				s.Pos = source.Position{File: "a.toml", Line: 3, Col: 1}
			}),
			webAt("off", onPort(83), policytest.TurnedOff, func(s *source.Service) { s.ExternalIPs = policytest.Addrs("203.0.113.3") }),
			webAt("neighbour", onPort(84), policytest.Announce(source.L2), func(s *source.Service) { s.ExternalIPs = policytest.Addrs("203.0.113.4") }),
		))
		taken := webAt("taken", func(s *source.Service) {
			s.ExternalIPs = policytest.Addrs("203.0.113.1", "203.0.113.5")
			s.Ports[0].Port = 81
		})
		l.Apply(policytest.Set(source.Unit{ID: source.UnitID{Source: "file", Name: "b"}, Services: []*source.Service{taken}}))
		show := func() (lines []string) {
			for _, a := range l.Announced() {
				lines = append(lines, fmt.Sprintf("%s %s %v %s %q %v %s", a.Address, a.Means, a.Announced, a.Withheld, a.Reason, a.Services, a.Place))
			}
			return lines
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := show(); !slices.Equal(got, want) {
				t.Errorf("got:\n%q\nwant:\n%q", got, want)
			}
		}
		expect(
			`203.0.113.1 bgp false pending "the kernel does not hold it yet" [default/a default/b default/taken] `,
			`203.0.113.2 bgp false no_endpoint "no endpoints" [default/down] a.toml:3:1`,
			`203.0.113.3 bgp false disabled "enabled = false" [default/off] `,
			`203.0.113.4 l2 false pending "the kernel does not hold it yet" [default/neighbour] `,
			`203.0.113.5 bgp false refused "its file is refused" [default/taken] `,
		)
		l.Synced("file")
		synctest.Wait()
		if got, want := show()[0], `203.0.113.1 bgp true  "in part: not usable at 80/tcp" [default/a default/b default/taken] `; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got, want := show()[3], `203.0.113.4 l2 false not_own_address "no link answers for it" [default/neighbour] `; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		net.deaf = map[policy.Family]string{policy.IPv6: "the other family"}
		if got, want := show()[0], `203.0.113.1 bgp true  "in part: not usable at 80/tcp" [default/a default/b default/taken] `; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		net.deaf[policy.IPv4] = "no session"
		if got, want := show()[0], `203.0.113.1 bgp false no_router "ready, no router: no session" [default/a default/b default/taken] `; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		net.without = "no [bgp]"
		if got, want := show()[0], `203.0.113.1 bgp false no_means "no [bgp]" [default/a default/b default/taken] `; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		k.mu.Lock()
		k.syncs = nil
		k.mu.Unlock()
	})
}

// The end of a Loop takes nothing back: traffic goes on.
func TestEndOfLoopWithdrawsNothing(t *testing.T) {
	k := &kernel{}
	t.Cleanup(func() { // after that of start
		if len(k.syncs) > 0 {
			t.Errorf("at the end: %q", k.syncs)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := start(t, k, announcedBy(k))
		l.Apply(inFile(webAt("web")))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
	})
}

// A drain of the host waits for no sync: routers are to turn away at once.
func TestDrainHostDuringSync(t *testing.T) {
	announcing(t, func(t *testing.T, k *kernel, l *Loop) {
		l.Apply(inFile(webAt("web")))
		l.Synced("file")
		k.expect(t, "full", "203.0.113.1 by bgp")
		k.mu.Lock()
		k.took = time.Minute / 2
		k.mu.Unlock()
		l.Apply(inFile(webAt("web", policytest.Endpoints("10.0.0.1", "10.0.0.2"))))
		synctest.Wait()
		l.DrainHost(true)
		k.mu.Lock()
		got := slices.Clone(k.syncs)
		k.mu.Unlock()
		if want := []string{"203.0.113.1 drained"}; !slices.Equal(got, want) {
			t.Errorf("when DrainHost has returned: %q, want %q", got, want)
		}
		l.DrainHost(false)
		time.Sleep(time.Minute)
		k.expect(t, "203.0.113.1 drained", "203.0.113.1 by bgp", "web")
	})
}
