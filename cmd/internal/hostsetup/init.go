package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

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
	tree    tree
	missing map[string][]string // why -> modules that could not be loaded
	errs    []error
}

func newInitializer(out io.Writer, t tree) *initializer {
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
func (in *initializer) set(s setting) {
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
			in.set(setting{"net/ipv6/conf/" + name + "/accept_ra", "2"})
		}
	}
}

// is reports whether a setting of an interface has a value. An interface that is gone meanwhile has none.
func is(ifname, name, value string) bool {
	got, err := sysctl.Get("net/ipv6/conf/" + ifname + "/" + name)
	return err == nil && got == value
}
