package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/source"
)

const (
	// leftAge is how old an answer may be: a little less than the interval of a client.
	leftAge = 900 * time.Millisecond

	// leftShare is how much longer than a look the pause after it is at least: looks then
	// cost less than a tenth of a processor, however many connections there are.
	leftShare = 9

	// leftLooks is of how many targets answers are remembered.
	leftLooks = 16
)

// A leftCounter counts connections to what is drained. One look at the kernel is under way at a time.
type leftCounter struct {
	loop interface{ Serving() []proxier.Serving }
	open func(ctx context.Context, fam proxier.Family, to netip.Addr, visit func(proxier.Place)) error

	mu    sync.Mutex
	looks map[conditions.DrainTarget]look
}

// A look is what was there at one time.
type look struct {
	began    time.Time
	took     time.Duration
	services []control.RemainingIn
}

// of returns which services have connections to a target, not long ago.
func (l *leftCounter) of(ctx context.Context, t conditions.DrainTarget) ([]control.RemainingIn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.looks[t]; ok && time.Since(was.began) < max(leftAge, was.took*(1+leftShare)) {
		return was.services, nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, countTime, fmt.Errorf("not counted within %v", countTime))
	defer cancel()
	services, err := l.count(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("counting connections: %w", cmp.Or(context.Cause(ctx), err))
	}
	if len(l.looks) >= leftLooks || l.looks == nil {
		l.looks = make(map[conditions.DrainTarget]look)
	}
	l.looks[t] = look{began, time.Since(began), services}
	return services, nil
}

// count looks at the kernel.
func (l *leftCounter) count(ctx context.Context, t conditions.DrainTarget) ([]control.RemainingIn, error) {
	serving := l.loop.Serving()
	found := make(map[source.Key]*control.RemainingIn)
	for i := range serving {
		fam := serving[i].Family
		if !t.Node && fam != proxier.FamilyOf(t.Addr) {
			continue
		}
		there := make(map[proxier.Place]int)
		err := l.open(ctx, fam, t.Addr, func(p proxier.Place) { there[p]++ })
		if err != nil {
			return nil, err
		}
		for p, r := range serving[i].Places() {
			if n := there[p]; n > 0 && (t.Service == source.Key{} || t.Service == r.Key) {
				remain(found, r.Key, p.Protocol, n)
			}
		}
	}
	list := make([]control.RemainingIn, 0, len(found))
	for _, s := range found {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b control.RemainingIn) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// remain counts connections for a service.
func remain(found map[source.Key]*control.RemainingIn, key source.Key, p source.Protocol, n int) {
	s := found[key]
	if s == nil {
		s = &control.RemainingIn{Namespace: key.Namespace, Name: key.Name}
		found[key] = s
	}
	if p == source.UDP {
		s.Flows += n
	} else {
		s.Connections += n
	}
}

// openConnections lists connections of a family that go to an address, or, invalid, anywhere.
func openConnections(ctx context.Context, fam proxier.Family, to netip.Addr, visit func(proxier.Place)) error {
	return conntrack.Open(ctx, fam == proxier.IPv6, to, func(c conntrack.Connection) {
		visit(proxier.Place{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst})
	})
}
