package nft

import (
	"fmt"

	"github.com/google/nftables"
)

// ForwardDrops returns the names of the base chains whose policy drops forwarded
// packets, as in "ip filter FORWARD". No other chain can overrule them. FORWARD of a
// table with a chain named own is left out: it is what iptables jumps from to that
// chain, which accepts.
func ForwardDrops(own string) ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("looking for chains that drop: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("looking for chains that drop: %w", err)
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	}
	accepting := map[string]bool{}
	for _, c := range chains {
		if own != "" && c.Name == own {
			accepting[families[c.Table.Family]+" "+c.Table.Name] = true
		}
	}
	var names []string
	for _, c := range chains {
		family := families[c.Table.Family]
		if family == "" || accepting[family+" "+c.Table.Name] && c.Name == "FORWARD" || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward {
			continue
		}
		if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			names = append(names, family+" "+c.Table.Name+" "+c.Name)
		}
	}
	return names, nil
}
