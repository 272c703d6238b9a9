//go:build netns

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/source"
)

// agreeTime is how long random services are tried.
var agreeTime = soak(20*time.Second, 10*time.Minute)

// Numbers of a round of TestModesAgree.
const (
	roundServices = 6
	roundProbes   = 90
	roundsEach    = 6 // with the same settings
)

// twinOf is the number of the service that is like the i-th, but without
// affinity: it shows whom a client may meet there.
func twinOf(i byte) byte { return i + 100 }

// agreeSettings are such as make a difference for packets.
var agreeSettings = []string{
	"",
	localCIDRs,
	"local_interfaces = [\"local*\"]\n",
	"masquerade = \"all\"\n",
	"masquerade = \"never\"\nnode_port_addresses = [\"all\"]\n",
	"masquerade = \"never\"\n" + localCIDRs,
}

// partners are the modes that are compared with nftables mode.
var partners = []mode{iptablesMode("nft"), iptablesMode("legacy")}

// TestModesAgree: the same files make the same observable packets in two modes.
func TestModesAgree(t *testing.T) {
	t.Parallel()
	r := newRandom(t)
	p := &pair{labs: [2]*env{newModeEnv(t, pick(r, partners...)), newModeEnv(t, nftablesMode())}}
	t.Logf("%s and %s", p.labs[0].mode, p.labs[1].mode)
	rounds := 0
	for end := time.Now().Add(agreeTime); time.Now().Before(end) && !t.Failed(); rounds++ {
		if rounds%roundsEach == 0 {
			p.restart(t, pick(r, agreeSettings...))
		}
		p.round(t, r)
	}
	t.Logf("%d rounds of %d probes: %s", rounds, roundProbes, &p.met)
	for o := range Broken {
		if p.met[o].Load() == 0 {
			t.Errorf("no packet was %s", o)
		}
	}
}

// A pair is two labs that differ in the mode of svcproxy only.
type pair struct {
	labs [2]*env
	met  outcomes
}

// outcomes counts what questions of both labs have met.
type outcomes [Broken + 1]atomic.Int64

func (o *outcomes) String() string {
	var parts []string
	for i := range o {
		parts = append(parts, fmt.Sprintf("%d %s", o[i].Load(), Outcome(i)))
	}
	return strings.Join(parts, ", ")
}

// newModeEnv returns a lab whose daemon does not run yet.
func newModeEnv(t *testing.T, m mode) *env {
	t.Helper()
	e := &env{Lab: newLab(t), mode: m, number: 1}
	if err := m.prepare(e.Node); err != nil {
		t.Fatal(err)
	}
	e.daemon = newDaemon(t, e.Lab, m)
	return e
}

// both is each where nothing may go wrong.
func (p *pair) both(t *testing.T, do func(*env) error) {
	t.Helper()
	err := p.each(func(_ int, e *env) error {
		if err := do(e); err != nil {
			return fmt.Errorf("%s: %w\n%s", e.mode, err, e.daemon.LogTail(logLines))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// each does something in both labs at a time.
func (p *pair) each(do func(i int, e *env) error) error {
	var g errgroup.Group
	for i, e := range p.labs {
		g.Go(func() error { return do(i, e) })
	}
	return g.Wait()
}

// restart starts both daemons again with settings.
func (p *pair) restart(t *testing.T, settings string) {
	t.Helper()
	p.both(t, func(e *env) error {
		e.settings = fmt.Sprintf("mode = %q\nnode_name = \"node\"\nzone = \"here\"\n%s%s", e.mode.name, settings, giveUpSoon)
		if !e.daemon.Running() {
			return errors.Join(e.daemon.Settings(e.settings), e.daemon.Start())
		}
		return errors.Join(e.daemon.Stop(), e.daemon.Settings(e.settings), e.daemon.Start())
	})
}

// round applies random services and compares what random packets meet.
func (p *pair) round(t *testing.T, r *rand.Rand) {
	var services []Service
	for i := range byte(roundServices) {
		services = append(services, p.labs[0].random(r, i))
		if services[len(services)-1].SessionAffinity != "" {
			services = append(services, p.labs[0].twin(services[len(services)-1], i))
		}
	}
	p.both(t, func(e *env) error { return e.daemon.Apply("random", services...) })
	var probes []probe
	for range roundProbes {
		probes = append(probes, p.labs[0].randomProbe(r, services))
	}
	const workers = 24 // they mostly wait for what is dropped
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(probes) && !t.Failed(); i += workers {
				if err := Poll(expectPatience, func() error { return p.compare(probes[i]) }); err != nil {
					text, _ := json.Marshal(services[probes[i].service])
					t.Errorf("%v\nsettings:\n%s\nservice: %s", err, p.labs[0].settings, text)
				}
			}
		})
	}
	wg.Wait()
}

// twin returns the service that shows whom clients of s may meet.
func (e *env) twin(s Service, i byte) Service {
	n := twinOf(i)
	s.Name, s.SessionAffinity = s.Name+"-twin", ""
	shift := func(addrs []netip.Addr, from, to Dual) []netip.Addr {
		addrs = slices.Clone(addrs)
		for k := range addrs {
			addrs[k] = moved(addrs[k], from, to)
		}
		return addrs
	}
	s.VIPs = shift(s.VIPs, e.vip(i), e.vip(n))
	s.ExternalIPs = shift(s.ExternalIPs, e.external(i), e.external(n))
	s.LoadBalancerIPs = shift(s.LoadBalancerIPs, e.loadBalancer(i), e.loadBalancer(n))
	s.Ports = slices.Clone(s.Ports)
	for k := range s.Ports {
		if s.Ports[k].NodePort != 0 {
			s.Ports[k].NodePort = randomNodePort(n)
		}
	}
	return s
}

// moved returns the address of to that addr is of from; others stay.
func moved(addr netip.Addr, from, to Dual) netip.Addr {
	switch addr {
	case from.V4:
		return to.V4
	case from.V6:
		return to.V6
	}
	return addr
}

// A probe is one question to either lab, From being of the first.
type probe struct {
	Question
	service int             // of the round
	twin    *netip.AddrPort // where to ask for a service with affinity whom a client may meet
}

// randomProbe asks for some address of some service, or for a port beside it.
func (e *env) randomProbe(r *rand.Rand, services []Service) probe {
	i := byte(r.IntN(roundServices))
	to := pick(r, e.vip(i), e.vip(i), e.external(i), e.loadBalancer(i), UplinkAddr, FrontAddr)
	port := uint16(80)
	if to == UplinkAddr || to == FrontAddr {
		port = randomNodePort(i)
	} else if oneIn(r, 8) && (to == e.vip(i) || e.unserved().outcome == Untouched) {
		port = 81 // of external addresses modes have different things to say
	}
	k := r.IntN(2)
	from := pick(r, e.Client, e.Client, e.Node, e.Local[0], e.Local[1], e.Remote[0])
	p := probe{Question: Question{
		From: from, Protocol: pick(r, source.TCP, source.UDP), To: netip.AddrPortFrom(to.Each()[k], port),
	}}
	if from == e.Client {
		p.Source = from.Addrs[r.IntN(2)].Each()[k] // inside and outside of source ranges
	}
	name := fmt.Sprintf("%s-random-%d", e.name(), i)
	p.service = slices.IndexFunc(services, func(s Service) bool { return s.Name == name })
	if services[p.service].SessionAffinity != "" {
		n := twinOf(i)
		addr := moved(moved(moved(p.To.Addr(), e.vip(i), e.vip(n)), e.external(i), e.external(n)), e.loadBalancer(i), e.loadBalancer(n))
		if port == randomNodePort(i) {
			port = randomNodePort(n)
		}
		p.twin = new(netip.AddrPortFrom(addr, port))
	}
	return p
}

// compare asks in both labs and tells what differs.
func (p *pair) compare(pr probe) error {
	if pr.twin == nil {
		_, err := p.reached(pr.Question)
		return err
	}
	asTwin := pr.Question
	asTwin.To = *pr.twin
	allowed, err := p.reached(asTwin)
	if err != nil {
		return err
	}
	return p.each(func(_ int, e *env) error {
		if err := p.sticks(e, pr.Question, allowed); err != nil {
			return fmt.Errorf("%s: %s: %w", e.mode, pr.Question, err)
		}
		return nil
	})
}

// Numbers of questions: enough to know nearly everybody who answers, and to know
// everybody but once in 10^11 times, where one in mostEndpoints has the least weight.
const (
	fewAsks  = 12
	manyAsks = 240

	stickyAsks = 4 // of one client
)

// reached asks a question until the same have answered in both labs, and saw the same address.
func (p *pair) reached(q Question) (map[string]bool, error) {
	var seen [2]map[string]bool
	for i := range p.labs {
		seen[i] = make(map[string]bool)
	}
	var failed atomic.Bool // whatever else is asked: the caller may start again, when a change is complete
	for n := 0; n < manyAsks && !failed.Load(); n += fewAsks {
		p.each(func(i int, e *env) error {
			for range fewAsks {
				got := p.ask(e, q)
				seen[i][describe(got)] = true
				if got.Outcome != Answered {
					failed.Store(true)
					break
				}
			}
			return nil
		})
		if maps.Equal(seen[0], seen[1]) {
			return seen[0], nil
		}
	}
	return nil, fmt.Errorf("%s: in mode %s %v, in mode %s %v", q,
		p.labs[0].mode, slices.Sorted(maps.Keys(seen[0])), p.labs[1].mode, slices.Sorted(maps.Keys(seen[1])))
}

// sticks checks that a client has always the same answer, one of those allowed.
func (p *pair) sticks(e *env, q Question, allowed map[string]bool) error {
	first := p.ask(e, q)
	for got, n := first, 0; ; got, n = p.ask(e, q), n+1 {
		switch {
		case !allowed[describe(got)]:
			return fmt.Errorf("%s, want one of %v", got, slices.Sorted(maps.Keys(allowed)))
		case describe(got) != describe(first):
			return fmt.Errorf("%s, want %s as at first", got, first)
		case n == stickyAsks, got.Outcome != Answered:
			return nil
		}
	}
}

// ask asks from the host of a lab that has the role of q's.
func (p *pair) ask(e *env, q Question) Answer {
	for _, h := range e.hosts() {
		if h.Role == q.From.Role {
			q.From = h
		}
	}
	got := Ask(q)
	p.met[got.Outcome].Add(1)
	if p.labs[0].mode.name == "ipvs" && q.From == e.Node && !q.Source.IsValid() && e.Node.Owns(got.Source) {
		// In ipvs mode the kernel chooses the VIP, which is an address of node; so
		// another one is chosen for it, on the way to the endpoint.
		got.Source = netip.Addr{}
	}
	return got
}

// describe is what of an answer must be the same.
func describe(a Answer) string {
	a.Err = nil
	return a.String()
}
