package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy/cmd/internal/modes"
	"svcproxy/cmd/internal/node"
	"svcproxy/configs"
	"svcproxy/proxier"
	"svcproxy/source"
	"svcproxy/source/file"
)

// available are the modes that there are, in the order in which auto prefers them.
var available = modes.All

func (d *daemon) openConfig(s configs.Settings) modes.OpenConfig {
	return modes.OpenConfig{Settings: s, StateDir: d.StateDir, Log: d.log}
}

// Supported returns which of the settings this build cannot do.
func Supported(s configs.Settings) error {
	for _, name := range s.Sources {
		if name != file.Name && !builtWith(name) {
			return fmt.Errorf("source %q is not in this build; set sources to [%q]", name, file.Name)
		}
	}
	if s.Mode == configs.Auto {
		return nil
	}
	_, err := modeNamed(s.Mode)
	return err
}

func modeNamed(name string) (modes.Mode, error) {
	built := []string{strconv.Quote(configs.Auto)}
	for _, m := range available {
		switch {
		case m.Open == nil:
		case m.Name == name:
			return m, nil
		default:
			built = append(built, strconv.Quote(m.Name))
		}
	}
	return modes.Mode{}, fmt.Errorf("mode %q is not in this build; set mode to %s", name, source.Either(built))
}

// An activeMode is a mode that is open.
type activeMode struct {
	modes.Mode
	backends map[proxier.Family]modes.Backend
	missing  []string // families left out, and why; those in use change it with daemon.mu held
	why      string   // it was chosen

	watched map[proxier.Family]func() // each ends what hears of changes by others

	held      familySet // of which it holds everything, or did until another mode was wanted
	leaving   familySet // of which another mode holds everything
	rulesGone familySet // of which what Retire leaves to RemoveRules is removed
	gone      familySet // of which nothing is left

	failed map[proxier.Family]string // why what it made could not be removed when last tried
}

// A familySet is families that something is true of.
type familySet map[proxier.Family]bool

func (s *familySet) add(fam proxier.Family) {
	if *s == nil {
		*s = make(familySet)
	}
	(*s)[fam] = true
}

// choose opens the mode that settings ask for, or the first that works.
func choose(ctx context.Context, c modes.OpenConfig) (*activeMode, error) {
	if c.Mode != configs.Auto {
		m, err := modeNamed(c.Mode)
		if err != nil {
			return nil, err
		}
		in, err := openAll(ctx, m, c)
		if err != nil {
			return nil, err
		}
		in.why = "it is set"
		return in, nil
	}
	var passed []string
	for _, m := range available {
		in, err := suits(ctx, m, c)
		if err == nil {
			in.why = strings.Join(append(passed, m.Name+" works"), "; ")
			return in, nil
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
	if m.Open == nil {
		return nil, fmt.Errorf("%s is not in this build", m.Name)
	}
	c.Mode = m.Name
	if err := c.Check(); err != nil {
		return nil, err
	}
	in, err := openAll(ctx, m, c)
	if err != nil {
		return nil, err
	}
	for _, fam := range node.Families(c.Settings) {
		if in.backends[fam] == nil && supported(fam) == nil {
			return nil, errors.Join(fmt.Errorf("%s: %s", m.Name, strings.Join(in.missing, "; ")), in.close())
		}
	}
	return in, nil
}

// openAll opens a mode for the families that this host has.
func openAll(ctx context.Context, m modes.Mode, c modes.OpenConfig) (*activeMode, error) {
	in := &activeMode{Mode: m, watched: make(map[proxier.Family]func())}
	in.backends, in.missing = openMore(ctx, m, c, nil)
	if len(in.backends) == 0 {
		return nil, fmt.Errorf("%s mode: %s", m.Name, strings.Join(in.missing, "; "))
	}
	return in, nil
}

// openMore opens a mode for those families that settings ask for and that are not
// open, and returns why others cannot be had.
func openMore(ctx context.Context, m modes.Mode, c modes.OpenConfig, open map[proxier.Family]modes.Backend) (opened map[proxier.Family]modes.Backend, missing []string) {
	opened = make(map[proxier.Family]modes.Backend)
	for _, fam := range node.Families(c.Settings) {
		if open[fam] != nil {
			continue
		}
		b, err := openFamily(ctx, m, fam, c)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s is left out: %v", fam, err))
			continue
		}
		opened[fam] = b
	}
	return opened, missing
}

// proxies returns the backends as the Loop knows them.
func (in *activeMode) proxies() map[proxier.Family]proxier.Backend {
	out := make(map[proxier.Family]proxier.Backend, len(in.backends))
	for fam, b := range in.backends {
		out[fam] = b
	}
	return out
}

// stop ends what hears of changes by others.
func (in *activeMode) stop() {
	for fam := range in.watched {
		in.stopFamily(fam)
	}
}

func (in *activeMode) stopFamily(fam proxier.Family) {
	if stop := in.watched[fam]; stop != nil {
		stop()
	}
	delete(in.watched, fam)
}

// close gives up what is open. The kernel stays as it is.
func (in *activeMode) close() error {
	in.stop()
	var errs []error
	for _, b := range in.backends {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

func openFamily(ctx context.Context, m modes.Mode, fam proxier.Family, c modes.OpenConfig) (modes.Backend, error) {
	if err := supported(fam); err != nil {
		return nil, err
	}
	return m.Open(ctx, fam, c)
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
// The state directory says what of IPVS is ours; stderr gets warnings.
func Cleanup(ctx context.Context, stateDir string, stderr io.Writer) error {
	log, _ := newLog(stderr, configs.Default().Log)
	all := remnants(func(string, proxier.Family) bool { return false })
	return errorOf(remove(ctx, modes.OpenConfig{Settings: configs.Default(), StateDir: stateDir, Log: log}, all))
}
