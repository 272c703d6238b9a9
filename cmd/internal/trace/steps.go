package trace

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// traced takes up one step of a packet. The first step has the headers as they were sent.
func (w *watcher) traced(t *nft.Trace) {
	s := w.byID[t.ID]
	if s == nil {
		if s = w.sent(t); s == nil || len(s.traces) >= maxSteps {
			return
		}
		w.byID[t.ID], s.traces = s, append(s.traces, t.ID)
	}
	if strings.HasPrefix(t.Name, tablePrefix) || len(s.steps) >= maxSteps {
		return
	}
	now := step{familyName(t.Family) + " " + t.Name, t.Chain, t.Verdict}
	if now.verdict == "jump" || now.verdict == "goto" || now.verdict == "return" {
		now.verdict = "" // the next step says where
	}
	if n := len(s.steps); n > 0 && s.steps[n-1].table == now.table && s.steps[n-1].chain == now.chain {
		s.steps[n-1] = now
		return
	}
	s.steps = append(s.steps, now)
}

// sent returns what is pending with the headers of a trace.
func (w *watcher) sent(t *nft.Trace) *sighting {
	conn, ok := tupleOf(t.Family, slices.Concat(t.Network, t.Transport))
	if !ok {
		return nil
	}
	for _, s := range w.pending {
		if s.conn == conn {
			return s
		}
	}
	return nil
}

func familyName(number byte) string {
	switch number {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	}
	return fmt.Sprint("family ", number)
}
