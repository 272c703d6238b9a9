package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"svcproxy/configs"
)

// Session affinity in iptables mode remembers clients in lists of xt_recent, one
// for each endpoint, and forgets the oldest when a list is full. The kernel's
// default is 100. Every list takes 8 bytes for each bucket from the start, and as
// many buckets as clients unless told otherwise.
const (
	recentClients = 10000
	recentBuckets = 1024
)

// needed returns the kernel modules that a mode uses. The kernel loads most of
// them by itself, but not for a program that may not load modules.
func needed(s configs.Settings, mode string) []string {
	list := []string{
		"nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_tables", "nft_compat", "nft_chain_nat",
		"ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "xt_set",
		"xt_addrtype", "xt_comment", "xt_connmark", "xt_conntrack", "xt_mark", "xt_nat", "xt_statistic", "xt_MASQUERADE",
	}
	for family, prefix := range map[string]string{"ipv4": "ip", "ipv6": "ip6"} {
		if slices.Contains(s.Families, family) {
			list = append(list, prefix+"_tables", prefix+"table_nat", prefix+"table_filter", prefix+"table_mangle",
				map[string]string{"ipv4": "ipt_REJECT", "ipv6": "ip6t_REJECT"}[family])
		}
	}
	if mode == "ipvs" {
		list = append(list, "ip_vs", "ip_vs_"+s.IPVS.Scheduler, "dummy", "xt_ipvs")
	}
	slices.Sort(list)
	return list
}

// mayBe tells whether the setting mode can lead to the mode of that name. Auto
// takes ipvs only where nothing else is, and its modules are asked for by name.
func mayBe(mode, name string) bool { return mode == name || mode == "auto" }

// A tree is a directory with an entry for each module that is loaded, or is
// built in and has parameters.
type tree string

const kernelTree tree = "/sys/module"

func (t tree) has(module string) bool {
	_, err := os.Stat(filepath.Join(string(t), module))
	return err == nil
}

// modules loads what is not there yet. One that this kernel does not have is no
// error: it may go without, as one without legacy iptables goes without ip_tables.
func (in *initializer) modules(ctx context.Context, s configs.Settings, mode string) {
	for _, m := range needed(s, mode) {
		in.load(ctx, m)
	}
	if mayBe(mode, "iptables") {
		in.recent(ctx)
	}
	for _, why := range slices.Sorted(maps.Keys(in.missing)) {
		in.say("modules not loaded, which may be built in or not needed here: %s: %s", strings.Join(in.missing[why], " "), why)
	}
}

func (in *initializer) load(ctx context.Context, module string, options ...string) {
	if in.tree.has(module) {
		return
	}
	if err := modprobe(ctx, module, options...); err != nil {
		why := strings.ReplaceAll(err.Error(), " "+module+" ", " ") // as of any other
		in.missing[why] = append(in.missing[why], module)
		return
	}
	if in.tree.has(module) { // a module that is built in may have no entry
		in.say("module %s: loaded%s", module, strings.Join(append([]string{""}, options...), " "))
	}
}

// recent loads xt_recent with long lists. Their length cannot be changed later.
func (in *initializer) recent(ctx context.Context) {
	in.load(ctx, "xt_recent", "ip_list_tot="+strconv.Itoa(recentClients), "ip_list_hash_size="+strconv.Itoa(recentBuckets))
	if w := in.tree.shortLists(); w != "" {
		in.say("%s", w)
	}
}

// shortLists says what is wrong with the lists of xt_recent, or nothing.
func (t tree) shortLists() string {
	b, err := os.ReadFile(filepath.Join(string(t), "xt_recent/parameters/ip_list_tot"))
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

// modprobe loads a module. Its own words say why it could not.
func modprobe(ctx context.Context, module string, options ...string) error {
	out, err := exec.CommandContext(ctx, "modprobe", append([]string{"--", module}, options...)...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(out) > 0 {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return err
}
