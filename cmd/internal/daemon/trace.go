package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"

	"svcproxy.dev/svcproxy/cmd/internal/trace"
)

// traceNames answers svcproxy trace: what services there are, for packets to one "address" or
// to all of them. Nothing but that is said where the client has the "revision".
func (r *reporter) traceNames(_ context.Context, q url.Values) (*trace.Names, error) {
	mode := r.mode.Current().Name
	now := r.loop.Revision() + uint64(r.started.UnixNano()) // of this run
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
	n := trace.NamesOf(r.loop.Snapshot().Snapshot, only)
	n.Mode, n.Revision = mode, now
	return n, nil
}

// removeTraces removes what a killed svcproxy trace left in the kernel.
func removeTraces(ctx context.Context, log *slog.Logger) {
	if err := trace.Remove(ctx); err != nil {
		log.Warn("a killed trace may have left rules in the kernel", "err", err)
	}
}
