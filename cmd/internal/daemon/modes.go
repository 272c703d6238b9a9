package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy/cmd/internal/node"
	"svcproxy/configs"
	"svcproxy/proxier"
	"svcproxy/proxier/iptables"
	"svcproxy/proxier/nftables"
	"svcproxy/source"
	"svcproxy/source/file"
)

// A mode is one kernel subsystem that can hold services.
type mode struct {
	name string

	// open returns the backend of one family, or why this host cannot have it.
	// Nil: this build does not have the mode.
	open func(ctx context.Context, fam proxier.Family, at site) (backend, error)

	// remove removes what the mode may have left of one family, without what open
	// needs. Nil: the backend's Cleanup does.
	remove func(ctx context.Context, fam proxier.Family, at site) error

	// clients returns who keeps which endpoint of pools, up to so many, also where the
	// mode is not open; with an error those that were read. keep has clients keep their
	// endpoints in this mode, which holds the pools, and returns how many do. Pools are
	// all of a family with session affinity. Nil: the mode cannot tell, or not be told.
	clients func(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, limit int) ([]proxier.Client, error)
	keep    func(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, clients []proxier.Client) (int, error)
}

// A site is what a mode is opened with.
type site struct {
	configs.Settings
	stateDir string
	log      *slog.Logger // nil: none
	leaving  bool         // only to leave what an earlier run made
}

func (d *daemon) site(s configs.Settings) site {
	return site{Settings: s, stateDir: d.StateDir, log: d.log}
}

// A warner is a backend that warns of what is no error.
type warner interface {
	SetLog(*slog.Logger)
}

// A backend is one that keeps something open.
type backend interface {
	proxier.Backend
	Close() error
}

// modes are in the order in which auto prefers them.
var modes = []mode{
	{name: "nftables", open: openNFTables, remove: removeNFTables, clients: nftables.Clients, keep: nftables.Keep},
	{name: "ipvs", open: openIPVS, remove: removeIPVS},
	{name: "iptables", open: openIPTables, remove: removeIPTables, clients: iptables.Clients, keep: keepIPTables},
}

func openIPTables(ctx context.Context, fam proxier.Family, _ site) (backend, error) {
	return iptables.New(ctx, fam)
}

// removeIPTables removes chains and sets, those of ipvs mode among them.
func removeIPTables(ctx context.Context, fam proxier.Family, _ site) error {
	return iptables.Cleanup(ctx, fam)
}

func keepIPTables(ctx context.Context, fam proxier.Family, _ []*proxier.Pool, clients []proxier.Client) (int, error) {
	return iptables.Keep(ctx, fam, clients)
}

func openNFTables(ctx context.Context, fam proxier.Family, _ site) (backend, error) {
	return nftables.New(ctx, fam)
}

func removeNFTables(ctx context.Context, fam proxier.Family, _ site) error {
	return nftables.Cleanup(ctx, fam)
}

// Supported returns which of the settings this build cannot do.
func Supported(s configs.Settings) error {
	for _, name := range s.Sources {
		if name != file.Name && !builtWith(name) {
			return fmt.Errorf("source %q is not in this build; set sources to [%q]", name, file.Name)
		}
	}
	if s.Mode == auto {
		return nil
	}
	_, err := modeNamed(s.Mode)
	return err
}

// auto is the setting that leaves the choice of the mode to what the kernel has.
const auto = "auto"

func modeNamed(name string) (mode, error) {
	built := []string{strconv.Quote(auto)}
	for _, m := range modes {
		switch {
		case m.open == nil:
		case m.name == name:
			return m, nil
		default:
			built = append(built, strconv.Quote(m.name))
		}
	}
	return mode{}, fmt.Errorf("mode %q is not in this build; set mode to %s", name, source.Either(built))
}

// An instance is a mode that is open.
type instance struct {
	mode     string
	backends map[proxier.Family]backend
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
func choose(ctx context.Context, s site) (*instance, error) {
	if s.Mode != auto {
		m, err := modeNamed(s.Mode)
		if err != nil {
			return nil, err
		}
		in, err := m.openAll(ctx, s)
		if err != nil {
			return nil, err
		}
		in.why = "it is set"
		return in, nil
	}
	var passed []string
	for _, m := range modes {
		in, err := m.suits(ctx, s)
		if err == nil {
			in.why = strings.Join(append(passed, m.name+" works"), "; ")
			return in, nil
		}
		passed = append(passed, err.Error())
	}
	return nil, fmt.Errorf("no mode works on this host: %s", strings.Join(passed, "; "))
}

// sameChoice reports whether choose has the same modes to try under both settings,
// which differ only in what can change at run time.
func sameChoice(a, b configs.Settings) bool {
	if a.Mode != b.Mode || a.Mode != auto {
		return a.Mode == b.Mode
	}
	for _, m := range modes {
		a.Mode, b.Mode = m.name, m.name
		if (a.Check() == nil) != (b.Check() == nil) {
			return false
		}
	}
	return true
}

// suits opens a mode for auto, which takes none that would leave out what another may have.
func (m mode) suits(ctx context.Context, s site) (*instance, error) {
	if m.open == nil {
		return nil, fmt.Errorf("%s is not in this build", m.name)
	}
	s.Mode = m.name
	if err := s.Check(); err != nil {
		return nil, err
	}
	in, err := m.openAll(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, fam := range node.Families(s.Settings) {
		if in.backends[fam] == nil && supported(fam) == nil {
			return nil, errors.Join(fmt.Errorf("%s: %s", m.name, strings.Join(in.missing, "; ")), in.close())
		}
	}
	return in, nil
}

// openAll opens a mode for the families that this host has.
func (m mode) openAll(ctx context.Context, s site) (*instance, error) {
	in := &instance{mode: m.name, watched: make(map[proxier.Family]func())}
	in.backends, in.missing = m.openMore(ctx, s, nil)
	if len(in.backends) == 0 {
		return nil, fmt.Errorf("%s mode: %s", m.name, strings.Join(in.missing, "; "))
	}
	return in, nil
}

// openMore opens a mode for those families that settings ask for and that are not
// open, and returns why others cannot be had.
func (m mode) openMore(ctx context.Context, s site, open map[proxier.Family]backend) (opened map[proxier.Family]backend, missing []string) {
	opened = make(map[proxier.Family]backend)
	for _, fam := range node.Families(s.Settings) {
		if open[fam] != nil {
			continue
		}
		b, err := openFamily(ctx, m, fam, s)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s is left out: %v", fam, err))
			continue
		}
		opened[fam] = b
	}
	return opened, missing
}

// proxies returns the backends as the Loop knows them.
func (in *instance) proxies() map[proxier.Family]proxier.Backend {
	out := make(map[proxier.Family]proxier.Backend, len(in.backends))
	for fam, b := range in.backends {
		out[fam] = b
	}
	return out
}

// stop ends what hears of changes by others.
func (in *instance) stop() {
	for fam := range in.watched {
		in.stopFamily(fam)
	}
}

func (in *instance) stopFamily(fam proxier.Family) {
	if stop := in.watched[fam]; stop != nil {
		stop()
	}
	delete(in.watched, fam)
}

// close gives up what is open. The kernel stays as it is.
func (in *instance) close() error {
	in.stop()
	var errs []error
	for _, b := range in.backends {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

func openFamily(ctx context.Context, m mode, fam proxier.Family, at site) (backend, error) {
	if err := supported(fam); err != nil {
		return nil, err
	}
	b, err := m.open(ctx, fam, at)
	if err != nil {
		return nil, err
	}
	if w, ok := b.(warner); ok && at.log != nil {
		w.SetLog(at.log)
	}
	return b, nil
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
	return errorOf(remove(ctx, site{Settings: configs.Default(), stateDir: stateDir, log: log}, all))
}
