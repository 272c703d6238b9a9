package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// ipsets are the sets of one family, on a socket for one goroutine at a time.
type ipsets struct {
	*family
	*ipset.Conn
	inUse map[string]bool // obsolete ones that foreign rules use
}

// all returns the sets of our prefix and family.
func (s *ipsets) all(ctx context.Context) (map[string]*ipset.Listing, error) {
	names, err := s.Names(ctx)
	if err != nil {
		return nil, err
	}
	list := map[string]*ipset.Listing{}
	for _, name := range names {
		l, err := s.get(ctx, name)
		if err != nil {
			return nil, err
		}
		if l != nil {
			list[name] = l
		}
	}
	return list, nil
}

// get returns a set if it is of our prefix and family. If the name does not tell
// the family, the set does.
func (s *ipsets) get(ctx context.Context, name string) (*ipset.Listing, error) {
	if !strings.HasPrefix(name, layout.Prefix) || strings.HasSuffix(name, s.words.OtherSuffix()) {
		return nil, nil
	}
	l, err := s.List(ctx, name)
	switch {
	case errors.Is(err, ipset.ErrNotExist): // the other family removed it meanwhile
		return nil, nil
	case err != nil:
		return nil, err
	case strings.HasSuffix(name, s.words.Suffix) || l.IPv6 == s.tool.IPv6:
		return l, nil
	}
	return nil, nil
}

// fill adds members to a set, and enlarges it if they do not fit.
func (s *ipsets) fill(ctx context.Context, name string, entries []ipset.Entry) error {
	err := s.Add(ctx, name, entries)
	if !errors.Is(err, ipset.ErrFull) {
		return err
	}
	have, err := s.List(ctx, name)
	if err != nil {
		return err
	}
	next := have.Set
	next.Name = s.words.Set(layout.GrownSet)
	next.MaxElem = max(2*have.MaxElem, setSize(len(have.Entries)+len(entries)))
	for _, step := range []func() error{
		func() error { return s.Destroy(ctx, next.Name) }, // left by a run that was killed here
		func() error { return s.Create(ctx, next) },
		func() error { return s.Add(ctx, next.Name, append(have.Entries, entries...)) },
		func() error { return s.Swap(ctx, name, next.Name) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return s.Destroy(ctx, next.Name)
}

// fillOrder returns the names of sets in the order to fill them. Frontends are restricted when their
// source ranges are there, and not after those have gone, or the sources within were dropped meanwhile.
func (s *ipsets) fillOrder(sets map[string][]ipset.Entry) []string {
	names, last := slices.Sorted(maps.Keys(sets)), s.words.Set(layout.FirewalledSet)
	if i, has := slices.BinarySearch(names, last); has {
		names = append(slices.Delete(names, i, i+1), last)
	}
	return names
}

// busyFor is how long a set may stay in use after the last rule with it was removed:
// nf_tables frees rules asynchronously.
const busyFor = 5 * time.Second

func (s *ipsets) destroyWithin(ctx context.Context, name string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := s.Destroy(ctx, name)
		if !errors.Is(err, ipset.ErrBusy) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// destroyObsolete destroys obsolete sets. One that a foreign rule uses stays, empty, and
// is desired to be so until the next resync, which tries again.
func (s *ipsets) destroyObsolete(ctx context.Context, d *difference) error {
	for _, name := range d.obsolete {
		timeout := busyFor
		if s.inUse[name] {
			timeout = 0
		}
		err := s.destroyWithin(ctx, name, timeout)
		switch {
		case errors.Is(err, ipset.ErrBusy) && ctx.Err() == nil:
			d.sets[name] = layout.Members{}
			err = s.emptyInUse(ctx, name)
		case err == nil:
			delete(s.inUse, name)
		}
		if err != nil {
			return err
		}
		proxier.Progressed(ctx)
	}
	return nil
}

// emptyInUse empties a set that cannot be destroyed, and logs that once.
func (s *ipsets) emptyInUse(ctx context.Context, name string) error {
	if !s.inUse[name] {
		s.log.Warn("keeping an obsolete set, emptied, because a foreign rule uses it", "set", name)
		s.inUse[name] = true
	}
	return s.Flush(ctx, name)
}

// purge destroys all our sets. If no chain was removed just now it does not wait
// until they are no longer in use.
func (s *ipsets) purge(ctx context.Context, wait bool) error {
	list, err := s.all(ctx)
	if ipset.IsUnsupported(err) {
		return nil
	}
	errs, timeout := []error{err}, busyFor
	if !wait {
		timeout = 0
	}
	removed := 0
	for name := range list {
		if err := s.destroyWithin(ctx, name, timeout); err != nil {
			errs = append(errs, err)
		} else {
			removed++
		}
	}
	proxier.RemovedSome(ctx, fmt.Sprintf("ipsets %s* of %s", layout.Prefix, xtables.Base(s.tool.IPv6)), removed)
	return errors.Join(errs...)
}
