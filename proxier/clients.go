package proxier

import (
	"net/netip"
	"time"
)

// A Client is a client with session affinity, as handed over between modes.
type Client struct {
	Addr   netip.Addr
	Pool   *Pool
	Target int           // index of the endpoint in Pool.Targets
	Left   time.Duration // until the record expires, unless the client comes again
}

// StickyPools returns the pools of a family that have session affinity, as currently
// resolved; none if the family is not in use.
func (l *Loop) StickyPools(fam Family) (pools []*Pool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, f := range l.families {
		if f.fam == fam {
			pools = f.stickyPools()
		}
	}
	return pools
}

func (f *family) stickyPools() (pools []*Pool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, r := range f.allResolved() {
		for _, p := range r.Pools {
			if p.Affinity > 0 && len(p.Targets) > 0 {
				pools = append(pools, p)
			}
		}
	}
	return pools
}
