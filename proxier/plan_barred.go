package proxier

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
)

// barred returns the frontends that fewer clients may use than before: one for each list of
// those who still may.
func barred(port *resolvedPort, was frontendIndex) (list []Consequence) {
	for _, f := range port.frontends {
		if old := was.find(f); old == nil || !f.bars(old) {
			continue
		}
		sources := lists.Keep(f.SourceRanges, func(p netip.Prefix) bool { return p != netip.PrefixFrom(f.Key.Addr, f.Key.Addr.BitLen()) })
		i := slices.IndexFunc(list, func(c Consequence) bool { return slices.Equal(c.Sources, sources) })
		if i < 0 {
			i = len(list)
			list = append(list, port.consequence(Barred))
			list[i].Sources = sources
		}
		list[i].Frontends = append(list[i].Frontends, f.Key)
	}
	return list
}

// bars reports whether f admits fewer than it did before.
func (f *Frontend) bars(old *Frontend) bool {
	if !f.Restricted || !old.Restricted {
		return f.Restricted
	}
	within := func(p netip.Prefix) bool {
		q, ok := f.rangeOf(p.Addr())
		return ok && q.Bits() <= p.Bits()
	}
	return slices.ContainsFunc(old.SourceRanges, func(p netip.Prefix) bool { return !within(p) })
}
