package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// available are the modes that there are, in the order in which auto prefers them.
var available = modes.All

// Supported returns which of the settings this build cannot do.
func Supported(s configs.Settings) error {
	if err := supportedSources(s); err != nil || s.Mode == configs.Auto {
		return err
	}
	_, err := modeNamed(s.Mode)
	return err
}

func modeNamed(name string) (modes.Mode, error) {
	built := []string{strconv.Quote(configs.Auto)}
	for _, m := range available {
		if m.Name == name {
			return m, nil
		}
		built = append(built, strconv.Quote(m.Name))
	}
	return modes.Mode{}, fmt.Errorf("mode %q is not in this build; set mode to %s", name, source.Either(built))
}

// choose opens the mode that settings ask for, or the first that works, and waits for no family longer than decidePatience.
func choose(ctx context.Context, c modes.OpenConfig) (*activeMode, error) {
	if c.Mode != configs.Auto {
		m, err := modeNamed(c.Mode)
		if err != nil {
			return nil, err
		}
		am, err := openAll(ctx, m, c, decidePatience)
		if err != nil {
			return nil, err
		}
		am.why = setBySettings
		return am, nil
	}
	var passed []string
	for _, m := range available {
		am, err := suits(ctx, m, c)
		if err == nil {
			am.why = strings.Join(append(passed, m.Name+" works"), "; ")
			return am, nil
		}
		passed = append(passed, err.Error())
	}
	return nil, fmt.Errorf("no mode works on this host: %s", strings.Join(passed, "; "))
}

// sameChoice reports whether choose has the same modes to try under both settings,
// which differ only in what can change at run time.
func sameChoice(a, b configs.Settings) bool {
	if a.Mode != b.Mode || a.Mode != configs.Auto {
		return a.Mode == b.Mode
	}
	for _, m := range available {
		a.Mode, b.Mode = m.Name, m.Name
		if (a.Check() == nil) != (b.Check() == nil) {
			return false
		}
	}
	return true
}

// suits opens a mode for auto, which takes none that would leave out what another may have.
func suits(ctx context.Context, m modes.Mode, c modes.OpenConfig) (*activeMode, error) {
	c.Mode = m.Name
	if err := c.Check(); err != nil {
		return nil, err
	}
	am, err := openAll(ctx, m, c, decidePatience)
	if err != nil {
		return nil, err
	}
	for _, fam := range node.Families(c.Settings) {
		if am.backends[fam] == nil && supported(fam) == nil {
			return nil, errors.Join(fmt.Errorf("%s: %s", m.Name, strings.Join(am.missing(), "; ")), am.close())
		}
	}
	return am, nil
}

// supported tries whether the kernel has a family: IPv6 may be left out of it, or be disabled at boot.
func supported(fam policy.Family) error {
	domain := unix.AF_INET
	if fam == policy.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("this kernel does not have it: %w", err)
	}
	return unix.Close(fd)
}

// Cleanup removes what any mode may have left in the kernel, of both families.
// The state directory says what of IPVS is ours; stderr gets warnings.
func Cleanup(ctx context.Context, stateDir string, stderr io.Writer) error {
	log, _ := newLog(stderr, configs.Default().Log)
	all := remnants(func(string, policy.Family) bool { return false })
	left := remove(ctx, modes.OpenConfig{Settings: configs.Default(), StateDir: stateDir, Log: log}, all)
	return errors.Join(errorOf(left), trace.Remove(ctx))
}

// setBySettings is why a mode is used that settings name.
const setBySettings = "it is set"
