package ipvs

import (
	"context"
	"log/slog"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
)

// Options are the settings of ipvs mode.
type Options struct {
	StateDir  string // holds the record; empty: none is kept
	Scheduler string // for services that name none

	// DrainTimeout is how long a removed TCP destination may keep its connections.
	DrainTimeout time.Duration

	// How long the kernel keeps idle connections of the whole namespace; 0: unchanged.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration

	// Leaving: there will be no Sync, only the removal of what an earlier run made. Then
	// features are not probed, because that adds rules.
	Leaving bool

	Log *slog.Logger // for warnings of foreign virtual servers; nil: none
}

// timeouts are how long the kernel is to keep idle connections; 0: as it does.
type timeouts lvs.Timeouts

// set sets them if the kernel has others.
func (t timeouts) set(ctx context.Context, conn *lvs.Conn) error {
	differ, err := t.differ(ctx, conn)
	if err != nil || !differ {
		return err
	}
	return conn.SetTimeouts(ctx, lvs.Timeouts(t))
}

// differ reports whether the kernel has others.
func (t timeouts) differ(ctx context.Context, conn *lvs.Conn) (bool, error) {
	if t == (timeouts{}) {
		return false, nil
	}
	have, err := conn.Timeouts(ctx)
	if err != nil {
		return false, err
	}
	differs := func(want, have time.Duration) bool { return want != 0 && seconds(want) != seconds(have) }
	return differs(t.TCP, have.TCP) || differs(t.TCPFin, have.TCPFin) || differs(t.UDP, have.UDP), nil
}

// changes returns what set would do.
func (t timeouts) changes(ctx context.Context, conn *lvs.Conn) ([]proxier.Change, error) {
	differ, err := t.differ(ctx, conn)
	if err != nil || !differ {
		return nil, err
	}
	return []proxier.Change{{Op: "change", Object: "timeouts of IPVS"}}, nil
}
