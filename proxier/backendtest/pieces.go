package backendtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A looping has a Loop over the backend of a Host. Its Syncs are made by the goroutine of the test, which is
// in the namespace.
type looping[B Backend] struct {
	*Host[B]
	*loop.Loop
	calls chan func()
	after func(st *policy.State, took time.Duration) error // of each Sync
	syncs int
}

// loop starts a Loop, until the test ends.
func (h *Host[B]) loop(piece int, after func(*policy.State, time.Duration) error) *looping[B] {
	l := &looping[B]{Host: h, calls: make(chan func()), after: after}
	b := proxier.Backend(inOrder[B]{l})
	if p, ok := any(h.Backend).(proxier.Piecer); ok {
		b = struct {
			inOrder[B]
			proxier.Piecer
		}{inOrder[B]{l}, p}
	}
	local := Addr(h.Family, "external", 99)
	l.Loop = loop.New(loop.Config{
		Backends: map[policy.Family]proxier.Backend{h.Family: b}, Sources: []string{"file"}, Piece: piece,
		Node:         &policy.Node{Name: "here", Addrs: []netip.Addr{local}, NodePortAddrs: []netip.Addr{local}, MarkBit: 14},
		LookInterval: time.Hour, SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	h.Cleanup(func() { end(); <-ended })
	l.Synced("file")
	return l
}

// sync makes Syncs until the kernel holds what the Loop was told, most of them at most.
func (l *looping[B]) sync(name string, most int) {
	held := make(chan error, 1)
	go func() { held <- l.Held(l.Context(), 0) }()
	for range most {
		select {
		case call := <-l.calls:
			call()
			if l.syncs++; l.Failed() {
				l.Fatalf("in Sync %d, %s", l.syncs, name)
			}
		case err := <-held:
			l.Must(err)
			return
		}
	}
}

// inOrder has each Sync made by the goroutine of the test.
type inOrder[B Backend] struct{ *looping[B] }

func (b inOrder[B]) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	done := make(chan error, 1)
	call := func() {
		start := time.Now()
		err := b.Host.Backend.Sync(ctx, st, delta)
		if err == nil {
			err = b.after(st, time.Since(start))
		}
		if err != nil {
			b.Error(err)
		}
		done <- err
	}
	select {
	case b.calls <- call:
		return <-done
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b inOrder[B]) Look(context.Context) (bool, error) { return false, nil }

func (b inOrder[B]) Plan(ctx context.Context, st *policy.State) ([]proxier.Change, error) {
	return b.Host.Backend.Plan(ctx, st)
}

func (b inOrder[B]) Cleanup(ctx context.Context) error { return b.Host.Backend.Cleanup(ctx) }

// Services that change in pieces, whatever their frontends share: after each Sync the kernel holds the
// State, as a full Sync would make it.
func pieces[B Backend](h *Host[B]) {
	l := h.loop(300, func(st *policy.State, _ time.Duration) error {
		changes, err := h.Backend.Plan(h.Context(), st)
		if err == nil && len(changes) > 0 {
			err = fmt.Errorf("%d differ after a Sync: %v", len(changes), changes[:min(20, len(changes))])
		}
		return err
	})
	steps := pieceSteps(h.Family)
	for i, step := range steps {
		l.Apply(step.changes)
		most := 3 // the next change comes midway
		if i%2 == 1 || i == len(steps)-1 {
			most = 1000
		}
		l.sync(step.name, most)
	}
	if l.syncs < 2*len(steps) {
		h.Errorf("%d syncs of %d changes", l.syncs, len(steps))
	}
}

// BenchPieces measures the pieces of a service of so many addresses and ports: the longest Sync, all of them,
// and how long a small change takes that comes midway. The service comes, then changes its endpoints, then goes.
func BenchPieces[B Backend](h *Host[B], addrs, ports int) {
	b, isBench := h.TB.(interface{ ReportMetric(n float64, unit string) })
	longest := time.Duration(0)
	var small policy.ServicePortName
	var arrived, held time.Time
	l := h.loop(0, func(st *policy.State, took time.Duration) error {
		longest = max(longest, took)
		if st.Services[small.Key] != nil && held.IsZero() {
			held = time.Now()
		}
		return nil
	})
	service := func(endpoints int) source.Changes {
		s := &source.Service{Key: source.Key{Namespace: "default", Name: "large"}}
		for i := range addrs {
			s.VIPs = append(s.VIPs, Addr(h.Family, "vip", i))
		}
		for i := range ports {
			s.Ports = append(s.Ports, source.Port{Name: fmt.Sprint("p", i), Protocol: source.TCP, Port: uint16(i + 1), TargetPort: 8080})
		}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: Addr(h.Family, "endpoint", i), Weight: 1, Ready: true, Serving: true})
		}
		return source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "large"}, Services: []*source.Service{s}}}}
	}
	l.sync("start", 100)
	for i, step := range []struct {
		name    string
		changes source.Changes
	}{
		{"new", service(2)},
		{"endpoint", service(1)},
		{"gone", source.Changes{Delete: []source.UnitID{{Source: "file", Name: "large"}}}},
	} {
		longest, held = 0, time.Time{}
		small.Key = source.Key{Namespace: "default", Name: fmt.Sprint("small-", i)}
		start := time.Now()
		l.Apply(step.changes)
		l.sync(step.name, 5)
		arrived = time.Now()
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: small.Name}, Services: []*source.Service{{
			Key: small.Key, VIPs: []netip.Addr{Addr(h.Family, "vip", 100_000+i)}, Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}},
		}}}}})
		l.sync(step.name, 1_000_000)
		all := time.Since(start)
		h.Logf("%s: longest Sync %v, a small change %v, all %v, %d syncs so far", step.name, longest, held.Sub(arrived), all, l.syncs)
		if isBench {
			b.ReportMetric(float64(longest.Milliseconds()), "ms-longest-"+step.name)
			b.ReportMetric(float64(held.Sub(arrived).Milliseconds()), "ms-small-"+step.name)
			b.ReportMetric(all.Seconds(), "s-all-"+step.name)
		}
	}
}

type pieceStep struct {
	name    string
	changes source.Changes
}

// pieceSteps returns changes of services of several hundred frontends.
func pieceSteps(fam policy.Family) []pieceStep {
	files := func(list ...*source.Service) (ch source.Changes) {
		for _, s := range list {
			ch.Set = append(ch.Set, source.Unit{ID: source.UnitID{Source: "file", Name: s.Name}, Services: []*source.Service{s}})
		}
		return ch
	}
	gone := func(name string) source.UnitID { return source.UnitID{Source: "file", Name: name} }
	large := func(name string, first int, edit ...func(*source.Service)) *source.Service {
		s := &source.Service{Key: source.Key{Namespace: "default", Name: name}}
		for i := range 6 {
			s.VIPs = append(s.VIPs, Addr(fam, "vip", first+i))
			s.ExternalIPs = append(s.ExternalIPs, Addr(fam, "external", first+i))
		}
		for i := range uint16(12) {
			s.Ports = append(s.Ports, source.Port{
				Name: fmt.Sprint("p", i), Protocol: source.TCP, Port: 80 + i, TargetPort: 8080 + i%3, NodePort: 30000 + uint16(first)*20 + i,
			})
		}
		for i := range 3 {
			e := source.Endpoint{Addr: Addr(fam, "endpoint", first+i), Weight: 1, Ready: true, Serving: true}
			e = e.With(source.Extras{Node: []string{"here", "there"}[i%2]})
			s.Endpoints = append(s.Endpoints, e)
		}
		for _, e := range edit {
			e(s)
		}
		return s
	}
	fewer := func(s *source.Service) { s.Endpoints = s.Endpoints[:2] }
	sticky := func(s *source.Service) { s.Affinity = time.Hour }
	maglev := func(s *source.Service) {
		s.Ports, s.Scheduler, s.HashOn = s.Ports[:4], source.Maglev, source.ClientIP
		s.Endpoints = s.Endpoints[:2]
	}
	local := func(s *source.Service) { s.ExternalTrafficPolicy, s.InternalTrafficPolicy = source.Local, source.Local }
	limited := func(s *source.Service) {
		s.SourceRanges = []netip.Prefix{netip.PrefixFrom(Addr(fam, "external", 200), fam.Bits()-4).Masked()}
	}
	fewAddrs := func(s *source.Service) { s.VIPs, s.ExternalIPs = s.VIPs[:4], s.ExternalIPs[2:] }
	onePort := func(s *source.Service) { s.Ports = s.Ports[:1] }
	kept := func(s *source.Service) { s.Masquerade = source.MasqueradeNever }
	small := large("small", 1, onePort, func(s *source.Service) { s.VIPs, s.ExternalIPs, s.Ports[0].NodePort = s.VIPs[:1], nil, 0 })
	return []pieceStep{
		{"new", files(large("sticky", 1, sticky), large("plain", 20, local))},
		{"fewer endpoints", files(large("sticky", 1, sticky, fewer), large("plain", 20, local, fewer))},
		{"fewer addresses, and restricted", files(large("sticky", 1, sticky, fewer, fewAddrs), large("plain", 20, local, limited))},
		{"other routes", files(large("sticky", 1, sticky, kept), large("plain", 20, kept))},
		{"without affinity, and with it", files(large("sticky", 1, local), large("plain", 20, sticky, limited))},
		{"gone, to another", source.Changes{Set: files(small).Set, Delete: []source.UnitID{gone("sticky")}}},
		{"back", source.Changes{Set: files(large("sticky", 1, sticky)).Set, Delete: []source.UnitID{gone("small")}}},
		{"to another", source.Changes{Set: files(large("taker", 1, local)).Set, Delete: []source.UnitID{gone("sticky"), gone("plain")}}},
		{"hashed", files(large("hashed", 50, maglev), large("taker", 1, sticky, limited, local))},
		{"hashed otherwise", files(large("hashed", 50, maglev, fewAddrs, func(s *source.Service) { s.Endpoints = s.Endpoints[:1] }))},
		{"gone", source.Changes{Delete: []source.UnitID{gone("hashed"), gone("taker")}}},
	}
}
