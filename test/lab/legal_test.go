//go:build netns

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
)

// legalTime is how long random services are tried in each mode.
var legalTime = soak(20*time.Second, 10*time.Minute)

// Numbers of a round of random services.
const (
	roundServices = 6
	roundProbes   = 90
	roundsEach    = 6 // with the same settings
)

// Settings make a difference for packets: their text, and what it means to the model.
type settings struct {
	text  string
	model policy.Host
}

var someSettings = []settings{
	{},
	{localCIDRs, policy.Host{LocalCIDRs: ranges("10.4.0.0/16", "fd00:4::/64")}},
	{"local_interfaces = [\"local*\"]\n", policy.Host{LocalInterfaces: []string{"local*"}}},
	{"masquerade = \"all\"\n", policy.Host{Masquerade: source.MasqueradeAll}},
	{"masquerade = \"never\"\nnode_port_addresses = [\"all\"]\n",
		policy.Host{Masquerade: source.MasqueradeNever, NodePortAddresses: source.SelectAddresses([]string{"all"})}},
	{"service_cidrs = [\"10.96.0.0/16\", \"fd00:96::/32\"]\n",
		policy.Host{ServiceCIDRs: ranges("10.96.0.0/16", "fd00:96::/32")}},
}

func ranges(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// TestLegal: packets to random services meet what the model of package policy allows, and in time all of it.
func TestLegal(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			r := newRandom(t)
			j := &judge{env: newModeEnv(t, m)}
			if err := j.AddMany(Fewer(mostMany)); err != nil {
				t.Fatal(err)
			}
			rounds := 0
			for end := time.Now().Add(legalTime); time.Now().Before(end) && !t.Failed(); rounds++ {
				if rounds%roundsEach == 0 {
					j.restart(t, pick(r, someSettings...))
				}
				j.round(t, r)
			}
			t.Logf("%d worlds, %d probes each: %s", rounds, roundProbes, &j.met)
			for o := range Broken {
				if j.met[o].Load() == 0 && rounds >= roundsEach {
					t.Errorf("no packet was %s", o)
				}
			}
		})
	}
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

// restart starts the daemon again with settings.
func (e *env) restart(t *testing.T, s settings) {
	t.Helper()
	e.settings = fmt.Sprintf("mode = %q\nnode_name = \"node\"\nzone = \"here\"\n%s%s", e.mode.name, s.text, giveUpSoon)
	err := e.daemon.Settings(e.settings)
	if e.daemon.Running() {
		err = errors.Join(e.daemon.Stop(), err)
	}
	if err = errors.Join(err, e.daemon.Start()); err != nil {
		t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
	}
}

// outcomes counts what questions have met.
type outcomes [Broken + 1]atomic.Int64

func (o *outcomes) String() string {
	var parts []string
	for i := range o {
		parts = append(parts, fmt.Sprintf("%d %s", o[i].Load(), Outcome(i)))
	}
	return strings.Join(parts, ", ")
}

// A judge compares what packets meet with the model.
type judge struct {
	*env
	model policy.Host // of the settings
	world *policy.World
	met   outcomes
}

func (j *judge) restart(t *testing.T, s settings) {
	t.Helper()
	j.env.restart(t, s)
	j.model = s.model
	j.model.Name, j.model.Zone = "node", "here"
	if j.model.NodePortAddresses == nil {
		j.model.NodePortAddresses = source.SelectAddresses([]string{"primary"})
	}
	for i, d := range j.Node.Addrs {
		for _, a := range d.Each() {
			j.model.Addresses = append(j.model.Addresses, policy.Address{Addr: a, Up: true, Primary: j.Node.Addrs[i] == UplinkAddr})
		}
	}
}

// round applies random services, drains one endpoint or none, and judges what random packets meet.
func (j *judge) round(t *testing.T, r *rand.Rand) {
	var services []Service
	for i := range byte(roundServices) {
		services = append(services, j.random(r, i))
	}
	shown := services
	if oneIn(r, 2) {
		services = append(services, j.wide(r, roundServices))
		shown = services
		services = append(services, j.fillers(r)...)
	}
	j.world = &policy.World{Host: j.model, Known: map[source.Key]map[netip.AddrPort]policy.Known{}}
	for _, s := range services {
		j.world.Services = append(j.world.Services, s.Model())
	}
	j.apply(t, services...)
	defer j.drainOne(t, r)()
	var probes []Question
	for range roundProbes {
		probes = append(probes, j.randomProbe(r, len(services)-len(shown)))
	}
	j.holds(t, shown, probes, func(q *Question) error {
		if err := j.judge(q); err != nil {
			return fmt.Errorf("%w\nknown: %v", err, j.world.Known)
		}
		return nil
	})
}

// holds checks something of each question until it holds, and shows the services where it does not.
func (e *env) holds(t *testing.T, services []Service, questions []Question, check func(*Question) error) {
	const workers = 24 // they mostly wait for what is dropped
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(questions) && !t.Failed(); i += workers {
				if err := pace.Poll(expectPatience, func() error { return check(&questions[i]) }); err != nil {
					text, _ := json.Marshal(services)
					t.Errorf("%v\nsettings:\n%s\nservices: %s", err, e.settings, text)
				}
			}
		})
	}
	wg.Wait()
}

// drainOne drains an endpoint in one of three worlds.
func (j *judge) drainOne(t *testing.T, r *rand.Rand) (undrain func()) {
	addr, drains := pick(r, slices.Concat(j.Local, j.Remote)...).Addr().Each()[r.IntN(2)], oneIn(r, 3)
	if !drains {
		return func() {}
	}
	for _, s := range j.world.Services {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.Addr == addr {
				j.world.Known[s.Key] = map[netip.AddrPort]policy.Known{s.EndpointAt(e): {Drained: true}}
			}
		}
	}
	if len(j.world.Known) == 0 {
		return func() {} // no service has it
	}
	tell := func(word string) {
		if out, err := j.daemon.Command(word, addr.String()); err != nil {
			t.Errorf("%s: %v: %s", word, err, out)
		}
	}
	tell("drain")
	return func() { tell("undrain") }
}

// randomProbe asks for some address that a service may have, also one of the fillers, or for a port beside it.
func (e *env) randomProbe(r *rand.Rand, fillers int) Question {
	i := byte(r.IntN(roundServices + 1))
	to := pick(r, e.vip(i), e.vip(i), e.external(i), e.loadBalancer(i), UplinkAddr, FrontAddr)
	if fillers > 0 && oneIn(r, 6) {
		to = e.filler(r.IntN(fillers))
	}
	port := uint16(80)
	if to == UplinkAddr || to == FrontAddr {
		port = randomNodePort(i)
	} else if oneIn(r, 8) {
		port = 81
	}
	k := r.IntN(2)
	from := pick(r, e.Client, e.Client, e.Node, e.Local[0], e.Local[1], e.Remote[0])
	q := Question{From: from, Protocol: pick(r, source.TCP, source.UDP), To: netip.AddrPortFrom(to.Each()[k], port)}
	if from == e.Client {
		q.Source = from.Addrs[r.IntN(2)].Each()[k] // inside and outside of source ranges
	}
	return q
}

// stickyAsks is how often a client asks that keeps its endpoint.
const stickyAsks = 4

// asks returns how often to ask so that the endpoint which gets least is missed once in 10^11 times.
func asks(legal policy.Outcomes) int {
	total, least := 0, math.MaxInt
	for _, share := range legal {
		total, least = total+share, min(least, share)
	}
	return 25 * total / least
}

// judge asks until all endpoints that may answer have, of which a client with affinity must meet one only.
func (j *judge) judge(q *Question) error {
	p, err := j.Packet(*q)
	if err != nil {
		return err
	}
	legal, sticky := j.legal(p)
	seen := policy.Outcomes{}
	for n := range asks(legal) {
		answer := Ask(*q)
		j.met[answer.Outcome].Add(1)
		got, err := j.outcome(p, answer)
		if err != nil || legal[got] == 0 {
			if answer.Outcome == Dropped {
				q.Patience = min(2*max(q.Patience, Patience), expectPatience/2)
			}
			return errors.Join(err, fmt.Errorf("%s from %s: %s, want one of %v", q, p.From, answer, slices.Collect(maps.Keys(legal))))
		}
		seen[got]++
		switch {
		case got.Verdict != policy.Balanced, len(seen) == len(legal) && !sticky, sticky && n == stickyAsks:
			return nil
		case sticky && len(seen) > 1:
			return fmt.Errorf("%s from %s: a client with affinity meets %v", q, p.From, seen)
		}
	}
	return fmt.Errorf("%s from %s: only %v, want all of %v", q, p.From, seen, legal)
}

// legal returns what the model allows, with the documented differences of modes, and whether clients keep their endpoint.
func (j *judge) legal(p policy.Packet) (all policy.Outcomes, sticky bool) {
	all = policy.Outcomes{}
	for o, share := range policy.Legal(j.world, p) {
		switch {
		case o.Verdict == policy.Balanced && p.Process:
			o.Masqueraded = false // either way the endpoint sees an address of node
		case o.Verdict == policy.Untouched && j.Node.Owns(p.To.Addr()):
			o.Verdict = policy.Refused // by node itself, where nothing listens
		case o.Verdict == policy.Untouched && j.mode.name == "ipvs":
			all[policy.Outcome{Verdict: policy.Refused}] = share // an external address is bound to node
		}
		all[o] += share
	}
	s := j.world.Service(p)
	return all, s != nil && s.Affinity > 0
}

// outcome returns an answer as the model has it.
func (j *judge) outcome(p policy.Packet, got Answer) (o policy.Outcome, err error) {
	switch got.Outcome {
	case Untouched:
		o.Verdict = policy.Untouched
	case Refused:
		o.Verdict = policy.Refused
	case Dropped:
		o.Verdict = policy.Dropped
	case Broken:
		return o, got.Err
	case Answered:
		o.Endpoint = netip.AddrPortFrom(j.EndpointOf(got, p), got.Port)
		o.Masqueraded = j.Node.Owns(got.Source) && !p.Process
		if got.Source != p.From && !j.Node.Owns(got.Source) {
			return o, fmt.Errorf("the endpoint sees %s", got.Source)
		}
	}
	return o, nil
}
