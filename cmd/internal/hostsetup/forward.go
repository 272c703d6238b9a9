package hostsetup

import (
	"context"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// lookTime is how long looking at legacy iptables may take. Usually it takes milliseconds.
var lookTime = 2 * time.Second

// forwardDrops names the chains that drop what is forwarded unless a rule accepts
// it: those of nf_tables, iptables-nft among them, and those of legacy iptables.
// Rules that drop are not looked for: what they match is not ours to judge. What
// cannot be read is not named, nor is a chain in front of which own accepts; empty:
// a mode accepts nowhere.
func forwardDrops(ctx context.Context, own string) []string {
	names, err := nft.ForwardDrops(own)
	if err != nil {
		names = nil
	}
	for _, v6 := range []bool{false, true} {
		if slices.Contains(xtables.LegacyTables(v6), "filter") {
			names = append(names, legacyForward(ctx, v6, own)...)
		}
		if own != "" {
			names = willAccept(ctx, names, v6)
		}
	}
	slices.Sort(names)
	return names
}

// legacyForward names FORWARD of legacy iptables where its policy is DROP and no chain own is there.
func legacyForward(ctx context.Context, v6 bool, own string) []string {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	tools, err := xtables.Installed(ctx, v6)
	if err != nil {
		return nil
	}
	for _, t := range tools {
		if t.Variant != xtables.Legacy {
			continue
		}
		table, err := t.Read(ctx, "filter", layout.Prefix)
		if err != nil || table.Policies["FORWARD"] != "DROP" {
			continue
		}
		if _, accepts := table.Chains[own]; !accepts {
			return []string{forwardOf(t)}
		}
	}
	return nil
}

// forwardOf returns the name of the chain FORWARD of a variant.
func forwardOf(t *xtables.Tool) string {
	if t.Variant == xtables.Legacy {
		return t.String() + " filter FORWARD"
	}
	if t.IPv6 {
		return "ip6 filter FORWARD"
	}
	return "ip filter FORWARD"
}

// willAccept takes the chain out of names in front of which the first sync will accept.
func willAccept(ctx context.Context, names []string, v6 bool) []string {
	ours := func(name string) bool {
		return strings.HasPrefix(name, xtables.Base(v6)+"-") || name == forwardOf(&xtables.Tool{Variant: xtables.NFT, IPv6: v6})
	}
	if !slices.ContainsFunc(names, ours) {
		return names // and no program is started
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	choice, err := filter.Choose(ctx, v6)
	if err != nil {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == forwardOf(choice.Use) })
}
