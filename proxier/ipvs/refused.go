package ipvs

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// refused has the desired servers that are missing or incomplete, with the reason.
// Retrying at once is useless.
type refused map[lvs.Key]refusal

type refusal struct {
	err     error
	foreign bool // another program has the server
}

// unserved returns the error for them; nil if there are none.
func (r refused) unserved() *proxier.PartialError {
	if len(r) == 0 {
		return nil
	}
	var errs proxier.Failures
	for _, key := range slices.SortedFunc(maps.Keys(r), compareKeys) {
		errs.Add(r[key].err)
	}
	return &proxier.PartialError{N: len(r), Err: errs.Join()}
}

// missingEntries returns those that do not exist at all. Foreign ones do: IPVS handles
// their packets, and daemons of the host do not see them. If our record was lost we made
// them, and they serve while the log says what to do.
func (r refused) missingEntries(servers map[lvs.Key]*server) map[ipset.Entry]bool {
	out := make(map[ipset.Entry]bool, len(r))
	for key, why := range r {
		if servers[key] == nil && !why.foreign {
			out[entryOf(key)] = true
		}
	}
	return out
}

// foreignServer is the refusal of a server that exists and is not recorded. It is left alone.
func foreignServer(name policy.ServicePortName, key lvs.Key) refusal {
	return refusal{fmt.Errorf("service %s: virtual server %v belongs to another program: it is left alone", name, key), true}
}

// retryRefused is how long after the kernel refused a server, for a missing scheduler
// say, it is tried again. Each try makes the kernel run modprobe.
const retryRefused = 30 * time.Second

// A retrySchedule is when to retry servers that the kernel refused.
type retrySchedule struct {
	n   int       // number of them
	due time.Time // when to retry some; zero: there are none
}

// count updates l after a Sync that succeeded. If a server was accepted after all, the
// others are tried at once.
func (l *retrySchedule) count(r refused, now time.Time) {
	n := 0
	for _, why := range r {
		if !why.foreign {
			n++
		}
	}
	switch {
	case n == 0:
		l.due = time.Time{}
	case n < l.n:
		l.due = now
	case !now.Before(l.due):
		l.due = now.Add(retryRefused)
	}
	l.n = n
}

// retry adds some of the servers that the kernel refused to keys, if they are due.
func (l *retrySchedule) retry(r refused, now time.Time, keys map[lvs.Key]struct{}) {
	if l.due.IsZero() || now.Before(l.due) {
		return
	}
	left := maxDue
	for key, why := range r { // in random order, so others the next time
		if why.foreign {
			continue
		}
		keys[key] = struct{}{}
		if left--; left == 0 {
			return
		}
	}
}
