package proxier

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A new service of more frontends and targets than largeService waits until the families hold what came with it and
// before it, and then comes alone: a change of another service waits for one such service, not for all of them.
var largeService = uint64(50_000)

// isLarge reports whether a service may wait. One whose health check port tells load balancers of it does not.
func isLarge(svc *source.Service) bool {
	if svc == nil || svc.Disabled || svc.HealthCheckNodePort != 0 {
		return false
	}
	p := svc.Products()
	return p.Frontends+p.Endpoints > largeService
}

// putOff notes which services of one step wait. Where one gives up an address or a port, another may get it, which must
// happen at once: then nothing waits before the families hold that. The caller holds l.mu.
func (l *Loop) putOff(changed []Transition) {
	if slices.ContainsFunc(changed, givesUp) {
		l.gaveUp = l.number + 1
	}
	held, _ := l.held()
	atOnce := !l.first || held < l.gaveUp
	for _, tr := range changed {
		was, waits := l.waiting[tr.key()]
		switch {
		case atOnce:
			delete(l.waiting, tr.key())
		case waits:
			l.waiting[tr.key()] = Transition{Old: was.Old, New: tr.New}
		case tr.Old == nil && isLarge(tr.New):
			l.waiting[tr.key()] = tr
			l.lastLarge = max(l.lastLarge, l.number+1)
		}
	}
}

// givesUp reports whether a service has other addresses or ports than before.
func givesUp(tr Transition) bool {
	old, now := tr.Old, tr.New
	return old != nil && (now == nil || now.Disabled != old.Disabled || !slices.Equal(old.Ports, now.Ports) || !slices.Equal(old.VIPs, now.VIPs) ||
		!slices.Equal(old.ExternalIPs, now.ExternalIPs) || !slices.Equal(old.LoadBalancerIPs, now.LoadBalancerIPs) || !slices.Equal(old.Without, now.Without))
}

// leaveOut takes the services that wait out of an order.
func (l *Loop) leaveOut(o *order) {
	for key := range l.waiting {
		delete(o.services, key)
	}
}

// orderLarge orders one service that waits, once the families hold the one before and what came with it.
func (l *Loop) orderLarge() {
	if len(l.waiting) == 0 {
		return
	}
	if held, _ := l.held(); held < l.lastLarge {
		return
	}
	var first source.Key
	for key := range l.waiting {
		if first == (source.Key{}) || key.Compare(first) < 0 {
			first = key
		}
	}
	o := order{queued: time.Now(), open: true, services: make(map[source.Key]Subject)}
	l.mu.Lock()
	l.lastLarge = l.number + 1
	l.admit(first, &o)
	l.mu.Unlock()
	l.tell(o, &mail{})
}

// admitAll adds all services that wait to an order.
func (l *Loop) admitAll(o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.waiting {
		l.admit(key, o)
	}
}

// admit adds a service that waits to an order, and has the log tell of it when the families hold it. The caller holds l.mu.
func (l *Loop) admit(key source.Key, o *order) {
	b := batch{number: l.number + 1, edits: make(map[source.Key]Transition)}
	b.add(key, l.waiting[key])
	l.keep(b)
	delete(l.waiting, key)
	o.services[key] = l.subject(l.tracker.inUse(key))
	l.revision.Add(1)
}

// waitingText is what status says of a service that waits.
const waitingText = "it is large, and waits until the changes before it are in the kernel"
