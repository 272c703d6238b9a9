package daemon

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy/configs"
	"svcproxy/proxier"
	"svcproxy/proxier/iptables"
	"svcproxy/source/file"
)

// A mode is one kernel subsystem that can hold services.
type mode struct {
	name string

	// open returns the backend of one family, or why this host cannot have it.
	// Nil: this build does not have the mode.
	open func(ctx context.Context, fam proxier.Family) (backend, error)
}

// A backend is one that keeps something open.
type backend interface {
	proxier.Backend
	Close() error
}

// modes are in the order in which auto prefers them.
var modes = []mode{
	{name: "nftables"},
	{name: "ipvs"},
	{name: "iptables", open: openIPTables},
}

func openIPTables(ctx context.Context, fam proxier.Family) (backend, error) {
	return iptables.New(ctx, fam)
}

// Supported returns which of the settings this build cannot do.
func Supported(s configs.Settings) error {
	for _, name := range s.Sources {
		if name != file.Name {
			return fmt.Errorf("source %q is not in this build; set sources to [%q]", name, file.Name)
		}
	}
	_, _, err := Mode(s)
	return err
}

// Mode returns the name of the mode that settings ask for, and why where they leave it open.
func Mode(s configs.Settings) (name, why string, err error) {
	var built []string
	for _, m := range modes {
		if m.open != nil {
			built = append(built, m.name)
		}
	}
	switch {
	case slices.Contains(built, s.Mode):
		return s.Mode, "it is set", nil
	case s.Mode == "auto":
		return built[0], "auto: the first that this build has of nftables, ipvs, iptables", nil
	}
	return "", "", fmt.Errorf("mode %q is not in this build; set mode to %s or \"auto\"", s.Mode, quoted(built))
}

func quoted(names []string) string {
	return `"` + strings.Join(names, `", "`) + `"`
}

// open returns the backends of a mode for the families that this host has, and
// says which it has not.
func open(ctx context.Context, name string, s configs.Settings) (map[proxier.Family]backend, []string, error) {
	i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
	backends := make(map[proxier.Family]backend)
	var missing []string
	for _, fam := range families(s) {
		b, err := openFamily(ctx, modes[i], fam)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s is left out: %v", fam, err))
			continue
		}
		backends[fam] = b
	}
	if len(backends) == 0 {
		return nil, nil, fmt.Errorf("%s mode: %s", name, strings.Join(missing, "; "))
	}
	return backends, missing, nil
}

func openFamily(ctx context.Context, m mode, fam proxier.Family) (backend, error) {
	if err := supported(fam); err != nil {
		return nil, err
	}
	return m.open(ctx, fam)
}

// families returns those that settings ask for.
func families(s configs.Settings) []proxier.Family {
	var list []proxier.Family
	for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
		if slices.Contains(s.Families, fam.String()) {
			list = append(list, fam)
		}
	}
	return list
}

// supported tries whether the kernel has a family: IPv6 may be left out of it, or be disabled at boot.
func supported(fam proxier.Family) error {
	domain := unix.AF_INET
	if fam == proxier.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("this kernel does not have it: %w", err)
	}
	return unix.Close(fd)
}

// Cleanup removes what any mode may have left in the kernel, of both families.
func Cleanup(ctx context.Context) error {
	return cleanup(ctx, func(string, proxier.Family) bool { return false })
}

// cleanup removes what each mode may have left in the kernel of each family, but for what is in use.
func cleanup(ctx context.Context, inUse func(mode string, fam proxier.Family) bool) error {
	var errs []error
	for _, m := range modes {
		for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
			if m.open == nil || inUse(m.name, fam) || supported(fam) != nil {
				continue
			}
			if err := m.cleanup(ctx, fam); err != nil {
				errs = append(errs, fmt.Errorf("cleaning up %s mode, %s: %w", m.name, fam, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeLeftovers removes what an earlier run with another mode or other families
// left in the kernel, after the first complete sync: make before break.
func (d *daemon) removeLeftovers(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-d.loop.Ready():
	}
	err := cleanup(ctx, func(mode string, fam proxier.Family) bool {
		return mode == d.mode && slices.Contains(families(d.fixed), fam)
	})
	if err != nil && ctx.Err() == nil {
		d.log.Warn("objects of an earlier run may be left in the kernel", "err", err)
	}
}

func (m mode) cleanup(ctx context.Context, fam proxier.Family) error {
	b, err := m.open(ctx, fam)
	if errors.Is(err, exec.ErrNotFound) {
		return nil // a host without the programs that a mode needs has nothing of it
	}
	if err != nil {
		return err
	}
	return errors.Join(b.Cleanup(ctx), b.Close())
}
