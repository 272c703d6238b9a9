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

// countRefused sets when to retry after a Sync that succeeded. If a server was accepted after all, the
// others are tried at once.
func (o *owner) countRefused(now time.Time) {
	n := 0
	for _, why := range o.refused {
		if !why.foreign {
			n++
		}
	}
	switch {
	case n == 0:
		o.retryDue = time.Time{}
	case n < o.refusals:
		o.retryDue = now
	case !now.Before(o.retryDue):
		o.retryDue = now.Add(retryRefused)
	}
	o.refusals = n
}

// addRetries adds some of the servers that the kernel refused to keys, if they are due.
func (o *owner) addRetries(now time.Time, keys map[lvs.Key]struct{}) {
	if o.retryDue.IsZero() || now.Before(o.retryDue) {
		return
	}
	left := maxDue
	for key, why := range o.refused { // in random order, so others the next time
		if why.foreign {
			continue
		}
		keys[key] = struct{}{}
		if left--; left == 0 {
			return
		}
	}
}

// maxLogged is how many foreign servers are logged at once. If the state directory was
// lost there are as many as services.
const maxLogged = 50

// logForeign logs servers that were not foreign, or not wanted, before.
func (o *owner) logForeign(c *frontendPairs) {
	known := o.foreign
	o.foreign = make(map[lvs.Key]struct{})
	var found []lvs.Key
	for key, why := range o.refused {
		if !why.foreign {
			continue
		}
		o.foreign[key] = struct{}{}
		if _, was := known[key]; !was {
			found = append(found, key)
		}
	}
	o.warnForeign(found, func(key lvs.Key) string {
		return fmt.Sprintf("a virtual server that service %s wants belongs to another program: it is left alone", c.by[key].frontend().ServicePort)
	})
}

// warnForeign logs the same of servers, in order, and how to remove them.
func (o *owner) warnForeign(keys []lvs.Key, what func(lvs.Key) string) {
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys[:min(len(keys), maxLogged)] {
		o.log.Warn(what(key), "family", o.fam, "virtual_server", key, "to_remove", "ipvsadm -D "+key.String())
	}
	if more := len(keys) - maxLogged; more > 0 {
		o.log.Warn("there are more such virtual servers: was the state directory lost?", "family", o.fam, "virtual_servers", more)
	}
}
