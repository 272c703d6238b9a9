package control

import (
	"context"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

var (
	// checkTime is how long Check takes at most.
	checkTime = 2 * time.Second

	// pendingTime is for how long Check waits for a change that is on its way to the kernel, or
	// for services of a daemon that starts.
	pendingTime = time.Second
)

// pendingPoll is how often it looks meanwhile.
const pendingPoll = 20 * time.Millisecond

// Check returns why not every address of the services of a selection serves, or of an
// empty one, why not all is as it should be; empty: it is. A host that is drained is to be
// left: that is a reason too. The error, after 2 s at most,
// wraps ErrUnreachable when no daemon answers.
func (c *Client) Check(ctx context.Context, which source.Selection) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("%w: no answer within %v", ErrUnreachable, checkTime))
	defer cancel()
	if why, err := c.leaves(ctx); err != nil || why != "" {
		return why, err
	}
	if len(which) == 0 {
		s, err := c.Summary(ctx, 1)
		return s.Trouble(), err
	}
	for begin, ready := time.Now(), false; ; time.Sleep(pendingPoll) {
		list, err := c.Services(ctx, which)
		if err != nil {
			return "", err
		}
		why, pending := verdict(list)
		if lost := Missing(which, list); lost != "" {
			why, pending = lost, !ready
			if ready, err = c.ready(ctx); err != nil { // if not, files may not have been read when it listed services
				return "", err
			}
		}
		if !pending || time.Since(begin) > pendingTime {
			return why, nil
		}
	}
}

// ready reports whether the first sync is complete.
func (c *Client) ready(ctx context.Context) (bool, error) {
	s, err := c.Summary(ctx, 1)
	return s.Ready, err
}

// leaves says that this host is drained; empty: it is not.
func (c *Client) leaves(ctx context.Context) (string, error) {
	var list []conditions.Drained
	if err := c.Ask(ctx, DrainPath, nil, &list); err != nil {
		return "", err
	}
	if len(list) == 0 || !list[0].Target.Node {
		return "", nil
	}
	return source.Printable(because("this host is drained by "+list[0].By, list[0].Reason)), nil
}

// verdict returns why not all services serve, and whether that may be so only
// because changes are on their way to the kernel.
func verdict(list []report.ServiceStatus) (why string, pending bool) {
	for i := range list {
		for _, f := range list[i].Frontends {
			if f.Serves() {
				continue
			}
			if why == "" || pending {
				why = problemLine(report.Problem{Subject: list[i].Key().String(), Address: f.Address, State: f.Trouble(), Reason: f.Reason, Place: list[i].Place})
			}
			pending = f.Action == "pending" && f.Reason == ""
			if !pending {
				return why, false
			}
		}
		if len(list[i].Frontends) == 0 {
			return problemLine(report.Problem{Subject: list[i].Key().String(), Reason: idleReason(list[i]), Place: list[i].Place}), false
		}
	}
	return why, pending
}

// idleReason says why a service has no address that serves.
func idleReason(s report.ServiceStatus) string {
	if s.Disabled {
		return "is disabled"
	}
	return "has no address that is served here"
}
