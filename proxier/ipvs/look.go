package ipvs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
)

// A lookout compares what IPVS and our device hold with the mirror, beside Syncs.
type lookout struct {
	v6       bool
	timeouts lvs.Timeouts // how long the kernel is to keep idle connections; 0: as it does
	mirror   mirror
	mu       sync.Mutex // held by looks
}

// compareKernel compares servers, and if it is given no connection for that also timeouts and addresses.
func (l *lookout) compareKernel(ctx context.Context, conn *lvs.Conn) (differs bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	servers, foreign, known := l.mirror.beginLook()
	if !known {
		return false, nil
	}
	defer func() { differs = l.mirror.endLook() && err == nil }()
	if conn != nil {
		return false, l.compareServers(ctx, conn, servers, foreign)
	}
	if conn, err = lvs.Dial(ctx); err != nil {
		return false, err
	}
	err = errors.Join(l.compareServers(ctx, conn, servers, foreign), l.compareTimeouts(ctx, conn), conn.Close())
	if err != nil {
		return false, err
	}
	return false, l.compareAddrs()
}

// forget clears the mirror, and disowns servers that looks found missing.
func (l *lookout) forget(r *record) {
	for _, key := range l.mirror.forget() {
		r.disown(key)
	}
}

// compareServers compares servers with the mirror. It skips those that a Sync changes meanwhile.
func (l *lookout) compareServers(ctx context.Context, conn *lvs.Conn, servers, foreign []lvs.Key) error {
	list, err := conn.Servers(ctx, l.v6, slices.Values(slices.Concat(servers, foreign)))
	if err != nil {
		return err
	}
	for _, key := range servers {
		if l.mirror.changedSince(key) {
			continue
		}
		s, there := list[key]
		if !there {
			l.mirror.compare(key, nil)
			continue
		}
		have, err := withDests(ctx, conn, s)
		if err != nil {
			return err
		}
		l.mirror.compare(key, have)
		proxier.Progressed(ctx)
	}
	for _, key := range foreign {
		if _, there := list[key]; !there {
			l.mirror.foreignGone(key)
		}
	}
	return nil
}

func (l *lookout) compareTimeouts(ctx context.Context, conn *lvs.Conn) error {
	differ, err := timeoutsDiffer(ctx, conn, l.timeouts)
	if differ {
		l.mirror.timeoutsDiffer()
	}
	return err
}

// compareAddrs compares the addresses of our device; if it does not exist, there are none.
func (l *lookout) compareAddrs() error {
	device, err := links.OpenDummy()
	if err != nil {
		return err
	}
	defer device.Close()
	_, have, err := addrsOf(device, l.v6)
	if err != nil {
		return err
	}
	l.mirror.compareAddrs(have)
	return nil
}

// canaryInterval is how often one of our servers, any of them, is looked up: a message
// each time. IPVS has no events.
const canaryInterval = 250 * time.Millisecond

// runCanary looks at all servers when one of them is missing.
func (l *lookout) runCanary(ctx context.Context, conn *lvs.Conn, changed func()) {
	defer conn.Close()
	tick := time.NewTicker(canaryInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key, known := l.mirror.pick()
		if !known {
			continue
		}
		if there, err := conn.Has(ctx, key); there || err != nil { // an error is reported by the next look
			continue
		}
		if differs, err := l.compareKernel(ctx, conn); err == nil && differs {
			l.mirror.markReported()
			changed()
		}
	}
}

// setTimeouts sets the timeouts if the kernel has others.
func (l *lookout) setTimeouts(ctx context.Context, conn *lvs.Conn) error {
	differ, err := timeoutsDiffer(ctx, conn, l.timeouts)
	if err != nil || !differ {
		return err
	}
	return conn.SetTimeouts(ctx, l.timeouts)
}

// timeoutsDiffer reports whether the kernel has other timeouts.
func timeoutsDiffer(ctx context.Context, conn *lvs.Conn, want lvs.Timeouts) (bool, error) {
	if want == (lvs.Timeouts{}) {
		return false, nil
	}
	have, err := conn.Timeouts(ctx)
	if err != nil {
		return false, err
	}
	differs := func(want, have time.Duration) bool { return want != 0 && seconds(want) != seconds(have) }
	return differs(want.TCP, have.TCP) || differs(want.TCPFin, have.TCPFin) || differs(want.UDP, have.UDP), nil
}
