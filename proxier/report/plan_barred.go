package report

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// barred returns the frontends that fewer clients may use than before: one for each list of
// those who still may.
func barred(port *resolvedPort, was policy.FrontendIndex) (list []Consequence) {
	for _, f := range port.frontends {
		if old := was.Find(f); old == nil || !f.Bars(old) {
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
