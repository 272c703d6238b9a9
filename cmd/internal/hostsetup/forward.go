package hostsetup

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"svcproxy/netutil/nft"
	"svcproxy/netutil/xtables"
	"svcproxy/proxier/filter"
)

// lookTime is how long looking at legacy iptables may take. Usually it takes milliseconds.
const lookTime = 2 * time.Second

// forwardDrops names the chains that drop what is forwarded unless a rule accepts
// it: those of nf_tables, iptables-nft among them, and those of legacy iptables.
// What cannot be read is not named.
func forwardDrops() []string {
	names, err := nft.ForwardDrops()
	if err != nil {
		names = nil
	}
	for file, v6 := range map[string]bool{"/proc/thread-self/net/ip_tables_names": false, "/proc/thread-self/net/ip6_tables_names": true} {
		tables, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Fields(string(tables)), "filter") {
			names = append(names, legacyForward(v6)...)
		}
	}
	slices.Sort(names)
	return names
}

// legacyForward names FORWARD of legacy iptables where its policy is DROP.
func legacyForward(v6 bool) []string {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	tools, err := xtables.Installed(ctx, v6)
	if err != nil {
		return nil
	}
	for _, t := range tools {
		if t.Variant != xtables.Legacy {
			continue
		}
		if table, err := t.Read(ctx, "filter", filter.Prefix); err == nil && table.Policies["FORWARD"] == "DROP" {
			return []string{t.String() + " filter FORWARD"}
		}
	}
	return nil
}
