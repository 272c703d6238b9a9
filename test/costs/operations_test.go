//go:build !race

package costs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier"
	filter "svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/ipvs"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/nftables"
	nftlayout "svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	many    = 10_000 // services, of 10 endpoints each
	perFile = 100
	started = 1_000
)

// operations returns what is measured: each stage of a change of one service, a start, and a status.
func operations(t *testing.T) []operation {
	all := parseAll(t, many)
	p := newPath(t, all)
	l := startLoop(t, all)
	texts := [2][]byte{text(0, perFile, 10), text(0, perFile, 11)}
	_, _, known := read.Rules{}.ParseNew(t.Context(), "a.toml", texts[0], nil)
	return []operation{
		{name: "read a file of 100 services", runs: 20, do: func(int) { parse(t, 0, perFile) }},
		{name: "read it again, one service changed", runs: 50, do: func(run int) {
			_, _, known = read.Rules{}.ParseNew(t.Context(), "a.toml", texts[(run+1)%2], known)
		}},
		{name: "resolve a service", runs: 200, do: func(run int) { policy.Resolve(changed(all, run), nil, p.node, policy.IPv4) }},
		{name: "change a service of 10,000: state and delta", runs: 200, do: func(run int) { p.put(run) }},
		{name: "change a service of 10,000: loop", runs: 200, do: func(run int) { l.change(all, run) }},
		{name: "change a service of 10,000: nftables", runs: 200, do: func(run int) { p.nftables(run) }, sends: p.nftables},
		{name: "change a service of 10,000: iptables", runs: 200, do: func(run int) { p.iptables(run) }, sends: p.iptables},
		{name: "change a service of 10,000: ipvs", runs: 200, do: func(run int) { p.ipvs(run) }, sends: p.ipvs},
		{name: "start with 1,000 services", runs: 2, do: func(int) { start(t) }},
		{name: "status of 10,000 services", runs: 2, do: func(int) { report.StatusOf(l.Snapshot(), nil) }},
		{name: "summary of 10,000 services", runs: 4, do: func(int) { report.Summarize(l.Snapshot(), 10) }},
	}
}

// text returns a file of services from first on. The first of them has so many endpoints, others 10.
func text(first, services, endpoints int) []byte {
	var b bytes.Buffer
	for i := first; i < first+services; i++ {
		fmt.Fprintf(&b, "[[services]]\nname = \"svc-%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ port = 80, target_port = 8080 }]\nendpoints = [", i, i/250, i%250+1)
		for e := range endpoints {
			fmt.Fprintf(&b, "\"10.%d.%d.%d\", ", 100+e, i/250, i%250+1)
		}
		b.WriteString("]\n\n")
		endpoints = 10
	}
	return b.Bytes()
}

func fileName(first int) string { return fmt.Sprintf("%05d.toml", first/perFile) }

func parse(t *testing.T, first, services int) []*source.Service {
	list, faults := read.Parse(fileName(first), text(first, services, 10))
	if len(list) != services || faults != nil {
		t.Fatalf("%d services, %v", len(list), faults)
	}
	return list
}

func parseAll(t *testing.T, services int) (all []*source.Service) {
	for first := 0; first < services; first += perFile {
		all = append(all, parse(t, first, perFile)...)
	}
	return all
}

// changed returns a service with another endpoint in place of its first one for an even run, and that service as it was
// for the next one.
func changed(all []*source.Service, run int) *source.Service {
	s := *all[run/2*17%len(all)]
	if s.Endpoints = slices.Clone(s.Endpoints); run%2 == 0 {
		s.Endpoints[0].Addr = netip.AddrFrom4([4]byte{10, 99, byte(run >> 8), byte(run)})
	}
	return &s
}

// A path is what follows changes of services from policy to the messages of each mode.
type path struct {
	all     []*source.Service
	node    *policy.Node
	state   *policy.State
	mirror  *nftlayout.Mirror
	dialect *nftlayout.Dialect
	rules   *filter.Rules // of iptables mode
	beside  *filter.Rules // of ipvs mode, beside its servers
	servers func(*policy.State, *policy.Delta) int
}

func newPath(t *testing.T, all []*source.Service) *path {
	p := &path{all: all, node: policytest.Node(), rules: filter.NewRules(policy.IPv4), beside: filter.NewIPVSRules(policy.IPv4)}
	p.state = policy.NewState(policy.IPv4, p.node, all)
	c := nftlayout.Render(p.state)
	p.dialect, p.mirror = c.Dialect, nftlayout.NewMirror(c, c.Checksums(), &p.state.Host)
	check(t, p.rules.Reset(p.state))
	check(t, p.beside.Reset(p.state))
	p.servers = ipvs.Follow(p.state, ipvs.Options{Scheduler: "rr", DrainTimeout: time.Minute})
	return p
}

// put changes a service of the State.
func (p *path) put(run int) *policy.Delta {
	s, ch := changed(p.all, run), policy.NewChanges()
	ch.Put(p.state, s.Key, policy.Resolve(s, nil, p.node, policy.IPv4))
	return ch.Delta()
}

// nftables makes a transaction, and returns what it has.
func (p *path) nftables(run int) map[string]int {
	u := p.mirror.Follow(p.dialect, p.put(run))
	b, elements := nftables.Batch(p.dialect, u), 0
	for _, e := range u.Edits {
		for range e.Added() {
			elements++
		}
		for range e.Changed() {
			elements += 2
		}
		for range e.Removed() {
			elements++
		}
	}
	return map[string]int{"elements": elements, "messages": b.Messages(), "bytes": b.Len()}
}

func (p *path) iptables(run int) map[string]int { return written(p.rules.Update(p.state, p.put(run))) }

func (p *path) ipvs(run int) map[string]int {
	d := p.put(run)
	sends := written(p.beside.Update(p.state, d))
	sends["messages"] = p.servers(p.state, d)
	return sends
}

// written returns how many chains are written, with how many rules, and how many members of sets change.
func written(ch *filter.Changes) map[string]int {
	sends := map[string]int{"chains": len(ch.Chains), "rules": 0, "members": 0}
	for _, rules := range ch.Chains {
		sends["rules"] += bytes.Count(rules, []byte("\n"))
	}
	for _, sets := range []map[string][]ipset.Entry{ch.Gained, ch.Lost} {
		for _, members := range sets {
			sends["members"] += len(members)
		}
	}
	return sends
}

// A running Loop has a backend that accepts everything.
type running struct {
	*loop.Loop
	synced observer
}

type observer struct {
	loop.Unobserved
	results chan loop.SyncResult
}

// Synced implements loop.Observer.
func (o observer) Synced(s loop.SyncResult) { o.results <- s }

type accepting struct{ proxier.Backend }

// Sync implements proxier.Backend.
func (accepting) Sync(context.Context, *policy.State, *policy.Delta) error { return nil }

// Look implements proxier.Backend.
func (accepting) Look(context.Context) (bool, error) { return false, nil }

// startLoop returns a Loop that has synced these services, each a unit of its own.
func startLoop(t *testing.T, all []*source.Service) *running {
	r := &running{synced: observer{results: make(chan loop.SyncResult, 1)}}
	r.Loop = loop.New(loop.Config{
		Backends: map[policy.Family]proxier.Backend{policy.IPv4: accepting{}}, Node: policytest.Node(), Sources: []string{"file"},
		SyncTimeout: time.Hour, LookInterval: time.Hour, Log: slog.New(slog.DiscardHandler), Observer: r.synced,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	var set source.Changes
	for _, s := range all {
		set.Set = append(set.Set, unit(s))
	}
	r.Apply(set)
	r.Loop.Synced("file")
	<-r.synced.results
	return r
}

func unit(s *source.Service) source.Unit {
	return source.Unit{ID: source.UnitID{Source: "file", Name: s.Name}, Services: []*source.Service{s}}
}

// change applies a change and waits until it is synced.
func (r *running) change(all []*source.Service, run int) {
	r.Apply(source.Changes{Set: []source.Unit{unit(changed(all, run))}})
	<-r.synced.results
}

// start reads services, and renders them for each mode.
func start(t *testing.T) {
	all := parseAll(t, started)
	startLoop(t, all)
	st := policy.NewState(policy.IPv4, policytest.Node(), all)
	nftlayout.Render(st)
	for _, r := range []*filter.Rules{filter.NewRules(policy.IPv4), filter.NewIPVSRules(policy.IPv4)} {
		check(t, r.Reset(st))
		r.Chains(func(string, string, []byte) {})
	}
	if got := ipvs.Text(st, "rr"); strings.Count(strings.Join(got, "\n"), "-A ") != started {
		t.Fatalf("%d lines", len(got))
	}
}
