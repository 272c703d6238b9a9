package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"svcproxy.dev/svcproxy/cmd/internal/trace"
)

// traceNames answers svcproxy trace: what services there are, for packets to one "address" or
// to all of them. Nothing but that is said where the client has the "revision".
func (d *daemon) traceNames(_ context.Context, q url.Values) (*trace.Names, error) {
	mode := d.mode.current().Name
	now := d.loop.Revision() + uint64(d.started.UnixNano()) // of this run
	if q.Get("revision") == strconv.FormatUint(now, 10) {
		return &trace.Names{Mode: mode, Revision: now, Unchanged: true}, nil
	}
	var only netip.Addr
	if a := q.Get("address"); a != "" {
		var err error
		if only, err = netip.ParseAddr(a); err != nil {
			return nil, fmt.Errorf("address to trace: %w", err)
		}
	}
	n := trace.NamesOf(d.loop.Snapshot(), only)
	n.Mode, n.Revision = mode, now
	return n, nil
}

// removeTraces removes what a killed svcproxy trace left in the kernel.
func (d *daemon) removeTraces(ctx context.Context) {
	if err := trace.Remove(ctx); err != nil {
		d.log.Warn("a trace that was killed may be left in the kernel", "err", err)
	}
}
