package policy

import (
	"iter"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// rangeLists yields the lists of who may use frontends of a kind, by their keys, without those that admit everybody.
func rangeLists(svc *source.Service, kind Kind) iter.Seq2[string, []netip.Prefix] {
	return func(yield func(key string, ranges []netip.Prefix) bool) {
		if len(svc.SourceRanges) > 0 && !yield("source_ranges", svc.SourceRanges) {
			return
		}
		if kind == LoadBalancer && len(svc.LoadBalancerSourceRanges) > 0 {
			yield("load_balancer_source_ranges", svc.LoadBalancerSourceRanges)
		}
	}
}

// restrict sets who may use a frontend: who is in each of the lists for it.
func restrict(f *Frontend, svc *source.Service, node *Node) {
	for _, ranges := range rangeLists(svc, f.Key.Kind) {
		admitted := sourceRanges(svc, ranges, f.Key.Addr, node)
		if f.Restricted {
			admitted = InBoth(f.SourceRanges, admitted)
		}
		f.Restricted, f.SourceRanges = true, admitted
	}
}

// KeptOutBy returns the key of a service that keeps an address from f, a frontend that Resolve
// has made of it on node; empty: none does.
func KeptOutBy(svc *source.Service, node *Node, f *Frontend, a netip.Addr) string {
	for key, ranges := range rangeLists(svc, f.Key.Kind) {
		if !InAny(sourceRanges(svc, ranges, f.Key.Addr, node), a) {
			return key
		}
	}
	return ""
}

// sourceRanges are the prefixes of its family that may use an address of a service, or node
// ports where it is unspecified. A range that holds an address of this node admits the whole
// node, under any of its addresses, and under the address itself, which a host that carries
// it takes as source, as it does of 127.0.0.1. One that holds only its address among
// local sources, that of a bridge of pods, is a range of those; an address that
// serves node ports of the service is the node's own, whatever is local beside it.
func sourceRanges(svc *source.Service, ranges []netip.Prefix, to netip.Addr, node *Node) []netip.Prefix {
	var out []netip.Prefix
	admitNode, fam, serve := false, FamilyOf(to), node.NodePortAddrsOf(svc.NodePortAddresses)
	for _, p := range ranges {
		if FamilyOf(p.Addr()) == fam {
			out = append(out, p)
			admitNode = admitNode || slices.ContainsFunc(node.Addrs, func(a netip.Addr) bool {
				return p.Contains(a) && (!InAny(node.LocalCIDRs, a) || slices.Contains(serve, a))
			})
		}
	}
	if admitNode {
		out = append(out, ownSources(to, node)...)
		for _, a := range node.Addrs {
			if FamilyOf(a) == fam {
				out = append(out, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return withoutContained(out)
}

// withoutContained sorts prefixes and leaves out those that lie in another one.
func withoutContained(in []netip.Prefix) []netip.Prefix {
	slices.SortFunc(in, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range in {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// ownSources are the sources of host processes to an address that are none of Node.Addrs.
func ownSources(to netip.Addr, node *Node) []netip.Prefix {
	switch {
	case !to.IsUnspecified():
		return []netip.Prefix{netip.PrefixFrom(to, to.BitLen())}
	case node.LocalhostNodePorts && to.Is4():
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)}
	}
	return nil
}

// InBoth returns what two lists of prefixes, sorted and without overlaps, have in common, as such a list.
func InBoth(a, b []netip.Prefix) (out []netip.Prefix) {
	for len(a) > 0 && len(b) > 0 {
		switch x, y := a[0], b[0]; {
		case x.Overlaps(y) && x.Bits() >= y.Bits():
			out, a = append(out, x), a[1:]
		case x.Overlaps(y):
			out, b = append(out, y), b[1:]
		case x.Compare(y) < 0:
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return out
}
