package proxier

import (
	"net/netip"
	"time"
)

// A Client is one whose session affinity keeps an endpoint, as one mode tells another.
type Client struct {
	Addr   netip.Addr
	Pool   *Pool
	Target int           // index of the endpoint in Pool.Targets
	Left   time.Duration // until it is forgotten, unless it comes again
}

// StickyPools returns the pools of a family whose clients keep their endpoint, as
// they are resolved now; none if the family is not in use.
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
	for _, r := range f.state.Services {
		for _, p := range r.Pools {
			if p.Affinity > 0 && len(p.Targets) > 0 {
				pools = append(pools, p)
			}
		}
	}
	return pools
}
