package trace

import (
	"bytes"
	"fmt"
	"os"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// chainsLoud returns why packets must not show the chains that they meet in a family;
// empty: they may. Iptables-legacy writes each step of such a packet to the log of the
// kernel, where one is bound.
func chainsLoud(fam policy.Family) string {
	if len(xtables.LegacyTables(fam == policy.IPv6)) == 0 {
		return ""
	}
	logger, err := os.ReadFile(fmt.Sprintf("/proc/sys/net/netfilter/nf_log/%d", dialects[fam].number))
	if err == nil && string(bytes.TrimSpace(logger)) == "NONE" {
		return ""
	}
	return "chains are not shown: iptables-legacy would write each step to the log of the kernel"
}
