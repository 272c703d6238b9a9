// Package hostsetup makes the settings of a host that svcproxy depends on, once
// and with all rights, so that the daemon can do with few; and it verifies them. A FeatureWarner and a
// DropWatch warn of what only shows while services are served.
package hostsetup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/sysctl"
)

// Init makes every setting that s asks for, in the modes that it may lead to, and writes
// a line about each that it changed. It goes on past what cannot be set.
func Init(ctx context.Context, s configs.Settings, out io.Writer) error {
	in, list := newInitializer(out, kernelTree), modes.OfSetting(s.Mode)
	in.modules(ctx, s, list)
	if slices.Contains(s.Families, "ipv6") {
		if _, err := sysctl.Get(forward6); errors.Is(err, sysctl.ErrUnknown) {
			in.printf("this kernel has no IPv6: left out")
			s.Families = slices.DeleteFunc(slices.Clone(s.Families), func(f string) bool { return f == "ipv6" })
		} else if s.Init.Forwarding {
			in.keepRouterAdvertisements()
		}
	}
	for _, set := range sysctls(s, list) {
		in.set(set)
	}
	return errors.Join(in.errs...)
}

// An initializer collects what went wrong.
type initializer struct {
	out     io.Writer
	tree    string
	missing map[string][]string // why -> modules that could not be loaded
	errs    []error
}

func newInitializer(out io.Writer, t string) *initializer {
	return &initializer{out: out, tree: t, missing: map[string][]string{}}
}

func (in *initializer) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(in.out, format+"\n", args...); err != nil {
		in.fail(err)
	}
}

func (in *initializer) fail(err error) {
	if err != nil {
		in.errs = append(in.errs, err)
	}
}

// set gives a setting its value.
func (in *initializer) set(s modes.Sysctl) {
	old, err := sysctl.Get(s.Name)
	if s.Name == beLiberal && errors.Is(err, sysctl.ErrUnknown) { // nobody need have asked for it
		in.printf("%s: left out: %v", s.Name, err)
		return
	}
	if err != nil || old == s.Value {
		in.fail(err)
		return
	}
	if err := sysctl.Set(s.Name, s.Value); err != nil {
		in.fail(err)
		return
	}
	in.printf("%s = %s (was %s)", s.Name, s.Value, old)
}

// keepRouterAdvertisements lets interfaces that have their address or default
// route from router advertisements keep them. A host that forwards ignores
// advertisements where accept_ra is 1, and forgets those routes at the moment
// when forwarding is turned on; so this must come before.
func (in *initializer) keepRouterAdvertisements() {
	names, err := filepath.Glob("/proc/sys/net/ipv6/conf/*")
	in.fail(err)
	for _, path := range names {
		name := filepath.Base(path)
		if name == "all" || name == "default" || name == "lo" {
			continue
		}
		if is(name, "forwarding", "0") && is(name, "accept_ra", "1") {
			in.set(modes.Sysctl{Name: "net/ipv6/conf/" + name + "/accept_ra", Value: "2"})
		}
	}
}

// is reports whether a setting of an interface has a value. An interface that is gone meanwhile has none.
func is(ifname, name, value string) bool {
	got, err := sysctl.Get("net/ipv6/conf/" + ifname + "/" + name)
	return err == nil && got == value
}

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

// kernelTree is a directory with an entry for each module that is loaded, or is
// built in and has parameters.
const kernelTree = "/sys/module"

func (in *initializer) has(module string) bool {
	_, err := os.Stat(filepath.Join(in.tree, module))
	return err == nil
}

// modules loads what is not there yet. One that this kernel does not have is no
// error: it may go without, as one without legacy iptables goes without ip_tables.
func (in *initializer) modules(ctx context.Context, s configs.Settings, list []modes.Mode) {
	for _, m := range needed(s, list) {
		in.load(ctx, m.Name, m.Options...)
	}
	for _, m := range list {
		if w := verifyClients(in.tree, m); w != "" {
			in.printf("%s", w)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(in.missing)) {
		in.printf("modules not loaded, which may be built in or not needed here: %s: %s", strings.Join(in.missing[why], " "), why)
	}
}

func (in *initializer) load(ctx context.Context, module string, options ...string) {
	if in.has(module) {
		return
	}
	if err := modprobe(ctx, module, options...); err != nil {
		why := strings.ReplaceAll(err.Error(), " "+module+" ", " ") // as of any other
		in.missing[why] = append(in.missing[why], module)
		return
	}
	if in.has(module) { // a module that is built in may have no entry
		in.printf("module %s: loaded%s", module, strings.Join(append([]string{""}, options...), " "))
	}
}

// verifyClients says what is wrong with how a mode remembers clients, or nothing.
func verifyClients(tree string, m modes.Mode) string {
	if m.VerifyClients == nil {
		return ""
	}
	return m.VerifyClients(tree)
}

// modprobe loads a module. Its own words say why it could not.
func modprobe(ctx context.Context, module string, options ...string) error {
	out, err := exec.CommandContext(ctx, "modprobe", append([]string{"--", module}, options...)...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && len(out) > 0 {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return err
}
