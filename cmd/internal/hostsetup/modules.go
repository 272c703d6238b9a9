package hostsetup

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
)

// needed returns the kernel modules that modes use. The kernel loads most of
// them by itself, but not for a program that may not load modules.
func needed(s configs.Settings, list []modes.Mode) []modes.Module {
	names := []string{
		"nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_tables", "nft_compat", "nft_chain_nat",
		"ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "xt_set",
		"xt_addrtype", "xt_comment", "xt_connmark", "xt_conntrack", "xt_mark", "xt_nat", "xt_statistic", "xt_MASQUERADE",
	}
	for family, prefix := range map[string]string{"ipv4": "ip", "ipv6": "ip6"} {
		if slices.Contains(s.Families, family) {
			names = append(names, prefix+"_tables", prefix+"table_nat", prefix+"table_filter", prefix+"table_mangle",
				map[string]string{"ipv4": "ipt_REJECT", "ipv6": "ip6t_REJECT"}[family])
		}
	}
	var all []modes.Module
	for _, name := range names {
		all = append(all, modes.Module{Name: name})
	}
	for _, m := range list {
		all = append(all, m.NeedsUnder(s).Modules...)
	}
	slices.SortFunc(all, func(a, b modes.Module) int {
		return cmp.Or(cmp.Compare(len(a.Options), len(b.Options)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

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
func (in *initializer) modules(ctx context.Context, s configs.Settings, list []modes.Mode) {
	for _, m := range needed(s, list) {
		in.load(ctx, m.Name, m.Options...)
	}
	for _, m := range list {
		if w := in.tree.verifyClients(m); w != "" {
			in.printf("%s", w)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(in.missing)) {
		in.printf("modules not loaded, which may be built in or not needed here: %s: %s", strings.Join(in.missing[why], " "), why)
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
		in.printf("module %s: loaded%s", module, strings.Join(append([]string{""}, options...), " "))
	}
}

// verifyClients says what is wrong with how a mode remembers clients, or nothing.
func (t tree) verifyClients(m modes.Mode) string {
	if m.VerifyClients == nil {
		return ""
	}
	return m.VerifyClients(string(t))
}

// modprobe loads a module. Its own words say why it could not.
func modprobe(ctx context.Context, module string, options ...string) error {
	out, err := exec.CommandContext(ctx, "modprobe", append([]string{"--", module}, options...)...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && len(out) > 0 {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return err
}
