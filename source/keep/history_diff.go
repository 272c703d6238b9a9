package keep

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A Diff says how the services of a version differ from those of the one in use before.
type Diff struct {
	Added   int      `json:"added"`
	Removed int      `json:"removed"`
	Changed int      `json:"changed"`
	Names   []string `json:"names,omitempty"` // +, - or ~ and the key, the first of them
}

// diffNames is how many services a Diff names.
const diffNames = 6

// DiffOf compares the services of two versions, each of which may be nil. Of files of endpoints it
// counts and names these, by address and port.
func DiffOf(was, is *read.Version) Diff {
	if was != nil && was.List != nil || is != nil && is.List != nil {
		return differences(textsOf(was), textsOf(is), strings.Compare, func(a, b string) bool { return a == b })
	}
	return differences(was.ByKey(), is.ByKey(), source.Key.Compare, func(a, b *source.Service) bool { return a.Equal(b) && a.SameNotes(b) })
}

func differences[K comparable, V any](before, after map[K]V, order func(a, b K) int, same func(a, b V) bool) (d Diff) {
	note := func(n *int, sign string, k K) {
		*n++
		if len(d.Names) < diffNames {
			d.Names = append(d.Names, fmt.Sprintf("%s%v", sign, k))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(before), order) {
		switch now, ok := after[k]; {
		case !ok:
			note(&d.Removed, "-", k)
		case !same(now, before[k]):
			note(&d.Changed, "~", k)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(after), order) {
		if _, ok := before[k]; !ok {
			note(&d.Added, "+", k)
		}
	}
	return d
}

// textsOf returns all that is said of the endpoints of a version, by address and port.
func textsOf(v *read.Version) map[string]string {
	all := map[string]string{}
	if v == nil || v.List == nil {
		return all
	}
	for _, e := range v.List.Endpoints {
		name := e.Addr.String()
		if e.Port != 0 {
			name = netip.AddrPortFrom(e.Addr, e.Port).String()
		}
		all[name] += endpointText(e.Endpoint)
	}
	return all
}

func endpointText(e source.Endpoint) string {
	x := e.Extras()
	return fmt.Sprintln(e.Ports, x.Node, x.Zone, e.Weight, e.Tier, x.MaxConnections, x.MinConnections, e.Disabled, e.Ready, e.Serving, e.Terminating)
}
