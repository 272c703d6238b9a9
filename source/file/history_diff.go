package file

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
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

// diffOf compares the services of two versions, each of which may be nil.
func diffOf(was, is *version) (d Diff) {
	if was != nil && was.list != nil || is != nil && is.list != nil {
		return diffOfLists(was, is)
	}
	before, after := map[source.Key]*source.Service{}, map[source.Key]*source.Service{}
	if was != nil {
		before = byKey(was.services)
	}
	if is != nil {
		after = byKey(is.services)
	}
	name := func(sign string, k source.Key) {
		if len(d.Names) < diffNames {
			d.Names = append(d.Names, sign+k.String())
		}
	}
	for _, k := range sortedKeys(before) {
		switch s := after[k]; {
		case s == nil:
			d.Removed++
			name("-", k)
		case !s.Equal(before[k]) || !s.SameNotes(before[k]):
			d.Changed++
			name("~", k)
		}
	}
	for _, k := range sortedKeys(after) {
		if before[k] == nil {
			d.Added++
			name("+", k)
		}
	}
	return d
}

func sortedKeys[V any](m map[source.Key]V) []source.Key {
	keys := make([]source.Key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, source.Key.Compare)
	return keys
}

// diffOfLists is diffOf for files of endpoints: it counts and names these, by address and port.
func diffOfLists(was, is *version) (d Diff) {
	before, after := textsOf(was), textsOf(is)
	name := func(sign, endpoint string) {
		if len(d.Names) < diffNames {
			d.Names = append(d.Names, sign+endpoint)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		switch now, ok := after[k]; {
		case !ok:
			d.Removed++
			name("-", k)
		case now != before[k]:
			d.Changed++
			name("~", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[k]; !ok {
			d.Added++
			name("+", k)
		}
	}
	return d
}

// textsOf returns all that is said of the endpoints of a version, by address and port.
func textsOf(v *version) map[string]string {
	all := map[string]string{}
	if v == nil || v.list == nil {
		return all
	}
	for _, e := range v.list.endpoints {
		name := e.Addr.String()
		if e.port != 0 {
			name = netip.AddrPortFrom(e.Addr, e.port).String()
		}
		all[name] += endpointText(e.Endpoint)
	}
	return all
}

func endpointText(e source.Endpoint) string {
	return fmt.Sprintln(e.Ports, e.Node, e.Zone, e.Weight, e.Tier, e.MaxConnections, e.MinConnections, e.Disabled, e.Ready, e.Serving, e.Terminating)
}
