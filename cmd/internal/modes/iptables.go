package modes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

func openIPTables(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
	b, err := iptables.New(ctx, fam)
	if err != nil {
		return nil, err
	}
	if c.Log != nil {
		b.SetLog(c.Log)
	}
	return b, nil
}

// removeIPTables removes chains and sets, those of ipvs mode among them.
func removeIPTables(ctx context.Context, fam policy.Family, _ OpenConfig) error {
	return iptables.Cleanup(ctx, fam)
}

func compareIPTables(before, after *policy.State, _ configs.Settings) ([]proxier.Change, error) {
	return iptables.Compare(before, after)
}

// Session affinity in iptables mode remembers clients in lists of xt_recent, one
// for each endpoint, and forgets the oldest when a list is full. The kernel's
// default is 100. Every list takes 8 bytes for each bucket from the start, and as
// many buckets as clients unless told otherwise.
const (
	recentClients = 10000
	recentBuckets = 1024
)

// iptablesNeeds has xt_recent with long lists. Their length cannot be changed later.
func iptablesNeeds(configs.Settings) Needs {
	return Needs{Modules: []Module{{Name: "xt_recent", Options: []string{
		"ip_list_tot=" + strconv.Itoa(recentClients), "ip_list_hash_size=" + strconv.Itoa(recentBuckets),
	}}}}
}

// verifyRecent says what is wrong with the lists of xt_recent, or nothing.
func verifyRecent(sys string) string {
	b, err := os.ReadFile(filepath.Join(sys, "xt_recent/parameters/ip_list_tot"))
	if err != nil {
		return "" // not loaded, or not for us to read
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n >= recentClients {
		return ""
	}
	return fmt.Sprintf("session affinity remembers only %d clients of an endpoint: module xt_recent has ip_list_tot=%d, "+
		"which cannot be changed while it is loaded; put \"options xt_recent ip_list_tot=%d ip_list_hash_size=%d\" in /etc/modprobe.d "+
		"or, where it is built in, xt_recent.ip_list_tot=%d on the kernel command line, and reboot",
		n, n, recentClients, recentBuckets, recentClients)
}
