package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"svcproxy/proxier"
	"svcproxy/source"
)

// maxErrors is how many services that cannot be served are told of one by one.
const maxErrors = 8

// A setAside is the services whose rules this host cannot have: it lacks a match.
// What they refuse they still refuse, but nothing of them is balanced.
type setAside struct {
	refusing map[source.Key]*proxier.Resolved // in place of what they were resolved to
	why      map[source.Key]string
}

func newSetAside() setAside {
	return setAside{map[source.Key]*proxier.Resolved{}, map[source.Key]string{}}
}

// state returns st with services that cannot be had set aside, and notes them.
func (b *Backend) state(st *proxier.State) *proxier.State {
	b.aside = newSetAside()
	return b.without(b.aside, st)
}

// without returns st with services that cannot be had set aside, which it notes in aside.
func (b *Backend) without(aside setAside, st *proxier.State) *proxier.State {
	if len(b.lacking) == 0 {
		return st
	}
	shown := *st
	shown.Services = maps.Clone(st.Services)
	for key, res := range st.Services {
		shown.Services[key] = b.shown(aside, res)
	}
	return &shown
}

// delta does the same for a change of st.
func (b *Backend) delta(d *proxier.Delta) *proxier.Delta {
	if len(b.lacking) == 0 {
		return d
	}
	shown := *d
	shown.Services = slices.Clone(d.Services)
	for i, ch := range d.Services {
		if ch.Old == nil {
			continue
		}
		if was := b.aside.refusing[ch.Old.Key]; was != nil {
			shown.Services[i].Old = was
			delete(b.aside.refusing, ch.Old.Key)
			delete(b.aside.why, ch.Old.Key)
		}
	}
	for i, ch := range d.Services {
		if ch.New != nil {
			shown.Services[i].New = b.shown(b.aside, ch.New)
		}
	}
	return &shown
}

// shown returns a service as it can be had, and notes in aside where that is not what it asks for.
func (b *Backend) shown(aside setAside, res *proxier.Resolved) *proxier.Resolved {
	lacks := b.rules.Needs(res, b.lacking)
	if lacks == "" {
		return res
	}
	aside.why[res.Key] = lacks
	aside.refusing[res.Key] = refusing(res)
	return aside.refusing[res.Key]
}

// refusing returns a service that refuses where res balances.
func refusing(res *proxier.Resolved) *proxier.Resolved {
	r := *res
	r.Pools, r.Hairpins = nil, nil
	r.Frontends = make([]*proxier.Frontend, len(res.Frontends))
	for i, f := range res.Frontends {
		g := *f
		for _, l := range []*proxier.Leg{&g.Outside, &g.Local} {
			if l.Action == proxier.Balance {
				l.Action, l.Masquerade = proxier.Reject, proxier.NoOne
			}
		}
		r.Frontends[i] = &g
	}
	return &r
}

// unserved returns what there is to tell of services that are set aside; nil: nothing.
func (b *Backend) unserved() error {
	if len(b.aside.why) == 0 {
		return nil
	}
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(b.aside.why), source.Key.Compare) {
		if len(errs) == maxErrors {
			errs = append(errs, fmt.Errorf("and %d more", len(b.aside.why)-maxErrors))
			break
		}
		lacks := b.aside.why[key]
		errs = append(errs, fmt.Errorf("service %s needs the match %s, which this host lacks: %s", key, lacks, b.lacking[lacks]))
	}
	frontends := make(map[proxier.FrontendKey]bool)
	for _, res := range b.aside.refusing {
		for _, f := range res.Frontends {
			frontends[f.Key] = true
		}
	}
	return &proxier.Unserved{N: len(b.aside.why), Err: errors.Join(errs...), Frontends: frontends}
}
