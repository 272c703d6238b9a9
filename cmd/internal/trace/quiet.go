package trace

import (
	"bytes"
	"fmt"
	"os"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// chainsLoud returns why packets must not show the chains that they meet in a family;
// empty: they may. Iptables-legacy writes each step of such a packet to the log of the
// kernel, where one is bound.
func chainsLoud(fam policy.Family) string {
	names, number := "ip_tables_names", 2
	if fam == policy.IPv6 {
		names, number = "ip6_tables_names", 10
	}
	tables, err := os.ReadFile("/proc/thread-self/net/" + names)
	if err != nil || len(bytes.TrimSpace(tables)) == 0 {
		return ""
	}
	logger, err := os.ReadFile(fmt.Sprintf("/proc/sys/net/netfilter/nf_log/%d", number))
	if err == nil && string(bytes.TrimSpace(logger)) == "NONE" {
		return ""
	}
	return "chains are not shown: iptables-legacy would write each step to the log of the kernel"
}
