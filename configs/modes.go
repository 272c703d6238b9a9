package configs

import (
	"fmt"
	"slices"

	"svcproxy/source"
)

// A Mode is what settings and service files may ask of a kernel subsystem that can
// hold services. What else there is to a mode stands in cmd/internal/modes.
type Mode struct {
	Name string

	// special are keys that a mode must do something for. One without them refuses
	// what they ask for instead of passing it over.
	special []string

	manyLists, maxLists int // of clients with session affinity: a warning and a fault; 0: any number
}

// The modes, in the order in which messages list them.
var (
	NFTablesMode = Mode{Name: "nftables"}
	IPVSMode     = Mode{Name: "ipvs", special: []string{keyScheduler}} // others choose endpoints by rules, at random
	IPTablesMode = Mode{Name: "iptables", special: []string{keyLocalhost}, manyLists: manyRecent, maxLists: maxRecent}

	Modes = []Mode{NFTablesMode, IPVSMode, IPTablesMode}
)

// Auto is the setting that leaves the choice of the mode to what the kernel has.
const Auto = "auto"

const (
	keyScheduler = "scheduler"
	keyLocalhost = "localhost_node_ports"
)

// LocalhostNodePorts reports whether the mode can serve node ports on 127.0.0.1.
func (m Mode) LocalhostNodePorts() bool { return m.can(keyLocalhost) }

func (m Mode) can(key string) bool { return slices.Contains(m.special, key) }

// modeNames returns the names of the modes that ok is true of.
func modeNames(ok func(Mode) bool) (names []string) {
	for _, m := range Modes {
		if ok(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// able returns the names of the modes that can do what a key asks for.
func able(key string) []string {
	return modeNames(func(m Mode) bool { return m.can(key) })
}

// modeSettings are what the setting mode can be.
func modeSettings() []string {
	return append([]string{Auto}, modeNames(func(Mode) bool { return true })...)
}

// modeNamed returns the mode of that name; for Auto one that can do nothing special.
func modeNamed(name string) Mode {
	if i := slices.IndexFunc(Modes, func(m Mode) bool { return m.Name == name }); i >= 0 {
		return Modes[i]
	}
	return Mode{Name: name}
}

// Check returns what is wrong with settings together. It is for the effective
// ones: a flag may set right what the file alone contradicts.
func (s *Settings) Check() error {
	if s.LocalhostNodePorts && s.Mode != Auto && !modeNamed(s.Mode).LocalhostNodePorts() {
		return fmt.Errorf("%s is for %s mode, and mode is %q", keyLocalhost, source.Either(able(keyLocalhost)), s.Mode)
	}
	return nil
}

// Refuse returns what of a service none of these modes can do.
func Refuse(s *source.Service, modes ...string) []source.Problem {
	return append(refuseScheduler(s, modes), refuseLists(s, modes)...)
}

func refuseScheduler(s *source.Service, modes []string) []source.Problem {
	if s.Scheduler == "" || slices.ContainsFunc(modes, func(mode string) bool { return modeNamed(mode).can(keyScheduler) }) {
		return unknownScheduler(s.Scheduler)
	}
	return []source.Problem{{
		Path: source.At(keyScheduler),
		Msg:  fmt.Sprintf("scheduler is for %s mode, and this is %s mode", source.Either(able(keyScheduler)), source.Either(modes)),
		Hint: "leave it out",
	}}
}
