package loop

import (
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// sizes say how many elements of sets, or rules, the kernel has for frontends.
type sizes struct {
	kernel proxier.Piecer
	slots  map[*policy.Pool]int
}

func newSizes(kernel proxier.Piecer) sizes {
	return sizes{kernel: kernel, slots: make(map[*policy.Pool]int)}
}

// aPiecer stands for a backend that is none.
type aPiecer struct{}

func (aPiecer) PieceSize() int                   { return 5_000 }
func (aPiecer) Slots(p *policy.Pool) int         { return len(p.Targets) }
func (aPiecer) SharesPool(*policy.Frontend) bool { return true }

// piecerOf returns what says how a large change is cut in pieces.
func piecerOf(b proxier.Backend) proxier.Piecer {
	if p, ok := b.(proxier.Piecer); ok {
		return p
	}
	return aPiecer{}
}

// elementsOf returns about how many elements of sets, or rules, a frontend has; f may be nil.
func (s *sizes) elementsOf(f *policy.Frontend) int {
	const flags = 4
	if f == nil {
		return 0
	}
	n := flags + s.pool(f.Outside.Pool) + len(f.SourceRanges)
	if f.Split() {
		n += flags + s.pool(f.Local.Pool)
	}
	return n
}

// pool returns the Slots of a pool.
func (s *sizes) pool(p *policy.Pool) int {
	n, known := s.slots[p]
	if !known {
		n = s.kernel.Slots(p)
		s.slots[p] = n
	}
	return n
}

// isLarge reports whether all of a service, before and after, may be more than so many elements.
func isLarge(kernel proxier.Piecer, most int, versions ...*policy.Resolved) bool {
	s := newSizes(kernel)
	n := 0
	for _, r := range versions {
		for _, f := range r.AllFrontends() {
			if n += s.elementsOf(f); n > most {
				return true
			}
		}
	}
	return false
}
