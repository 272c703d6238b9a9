package loop

import (
	"iter"
	"maps"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// allResolved yields all services as they were last resolved. The caller holds f.mu.
func (f *family) allResolved() iter.Seq2[source.Key, *policy.Resolved] {
	return func(yield func(source.Key, *policy.Resolved) bool) {
		for key, r := range f.state.Services {
			if f.growing[key] == nil && !yield(key, r) {
				return
			}
		}
		for key, g := range f.growing {
			if g.wanted != nil && !yield(key, g.wanted) {
				return
			}
		}
	}
}

// holding returns a function that reports whether the kernel is known to hold a frontend of a service
// as it was last resolved. The caller holds f.mu; not that of the function.
func (f *family) holding(key source.Key) func(*policy.Frontend) bool {
	ch, changed := f.changes.Services[key]
	if f.growing[key] == nil && !changed || !f.holdsAny() || changed && !ch.Part {
		is := !changed && f.holdsAny()
		return func(*policy.Frontend) bool { return is }
	}
	part := make(map[*policy.Frontend]bool)
	if changed {
		for _, fe := range ch.New.Frontends {
			part[fe] = true
		}
		for _, fe := range ch.Old.Frontends {
			delete(part, fe)
		}
	}
	r := f.state.Services[key]
	return func(fe *policy.Frontend) bool { return hasFrontend(r, fe) && !part[fe] }
}

// wantedState returns the State as it will be when all services are complete.
func (f *family) wantedState() *policy.State {
	if len(f.growing) == 0 {
		return f.state
	}
	st, ch := *f.state, policy.NewChanges()
	st.Services, st.RefusedVIPs = maps.Clone(st.Services), maps.Clone(st.RefusedVIPs)
	st.Hairpins, st.BoundAddrs = maps.Clone(st.Hairpins), maps.Clone(st.BoundAddrs)
	for key, g := range f.growing {
		ch.Put(&st, key, g.wanted)
	}
	return &st
}

// unfinished reports whether the kernel does not hold a service as it was last resolved.
func (f *family) unfinished(key source.Key) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, changed := f.changes.Services[key]
	return changed || f.growing[key] != nil
}
