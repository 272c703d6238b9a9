package configs

import (
	"errors"
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/http"
)

// A Mode is what settings and service files may ask of a kernel subsystem that can
// hold services. What else there is to a mode stands in cmd/internal/modes.
type Mode struct {
	Name string

	// Keys that not every mode can do. Where one is false, what asks for it is refused
	// instead of passed over.
	Scheduler, LocalhostNodePorts bool
	Maglev                        bool // scheduler = "maglev"; Scheduler is of all others
	Forward                       bool // endpoints can answer clients themselves
	OnePacket                     bool // each packet of UDP can be balanced by itself
	Limits                        bool // of connections of an endpoint
	Flowtable                     bool // forwarded packets of connections pass by the rules

	manyLists, maxLists int // of clients with session affinity: a warning and a fault; 0: any number
}

// The modes, in the order in which messages list them.
var (
	NFTablesMode = Mode{Name: "nftables", Maglev: true, Flowtable: true}
	IPVSMode     = Mode{Name: "ipvs", Scheduler: true, Maglev: true, Forward: true, OnePacket: true, Limits: true} // others choose endpoints by rules, at random
	IPTablesMode = Mode{Name: "iptables", LocalhostNodePorts: true, manyLists: manyRecent, maxLists: maxRecent}

	Modes = []Mode{NFTablesMode, IPVSMode, IPTablesMode}
)

// Auto is the setting that leaves the choice of the mode to what the kernel has.
const Auto = "auto"

func canSchedule(m Mode) bool       { return m.Scheduler }
func canHash(m Mode) bool           { return m.Maglev }
func canForward(m Mode) bool        { return m.Forward }
func hasFlowtable(m Mode) bool      { return m.Flowtable }
func canServeLocalhost(m Mode) bool { return m.LocalhostNodePorts }

// able names the modes that can do something.
func able(can func(Mode) bool) string {
	var names []string
	for _, m := range Modes {
		if can(m) {
			names = append(names, m.Name)
		}
	}
	return source.Either(names)
}

// modeSettings are what the setting mode can be.
func modeSettings() []string {
	names := []string{Auto}
	for _, m := range Modes {
		names = append(names, m.Name)
	}
	return names
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
	if s.LocalhostNodePorts && s.Mode != Auto && !modeNamed(s.Mode).LocalhostNodePorts {
		return fmt.Errorf("localhost_node_ports is for %s mode, and mode is %q", able(canServeLocalhost), s.Mode)
	}
	if len(s.Notify.Command) > 0 && s.Notify.URL != "" {
		return errors.New("[notify] has command and url; write one of them")
	}
	return s.HTTP.check(slices.Contains(s.Sources, http.Name))
}

// WarnOfMode returns what these settings ask for that a mode does not do, and does without.
func (s *Settings) WarnOfMode(m Mode) []string {
	if len(s.NFTables.Flowtable) == 0 || m.Flowtable {
		return nil
	}
	return []string{fmt.Sprintf("[nftables] flowtable is for %s mode, and this is %s mode", able(hasFlowtable), m.Name)}
}

// Refuse returns what of a service none of these modes can do.
func Refuse(s *source.Service, modes ...string) []source.Problem {
	return slices.Concat(refuseScheduler(s, modes), refuseForward(s, modes), refuseKeys(s, modes), refuseLists(s, modes))
}

// WarnOfModes returns the keys of a service that only some of these modes accept, where it is not known
// which of them is used.
func WarnOfModes(s *source.Service, modes ...string) (list []source.Problem) {
	refusing := make(map[string][]string) // by the path of a key
	var keys []source.Path
	for _, mode := range modes {
		for _, p := range Refuse(s, mode) {
			at := p.Path.String()
			if refusing[at] == nil {
				keys = append(keys, p.Path)
			}
			if !slices.Contains(refusing[at], mode) {
				refusing[at] = append(refusing[at], mode)
			}
		}
	}
	for _, key := range keys {
		refuse := refusing[key.String()]
		accept := slices.DeleteFunc(slices.Clone(modes), func(mode string) bool { return slices.Contains(refuse, mode) })
		if len(accept) == 0 {
			continue // Refuse says so for all modes together
		}
		list = append(list, source.Problem{
			Path: key, Warning: true,
			Msg:  fmt.Sprintf("mode is %q, and only %s mode accepts %s", Auto, source.Either(accept), key[len(key)-1].Key),
			Hint: fmt.Sprintf("write mode = %q in svcproxy.toml, or leave the key out: %s mode refuses the file", accept[0], source.Either(refuse)),
		})
	}
	return list
}

func refuseScheduler(s *source.Service, modes []string) []source.Problem {
	what, can := "scheduler", canSchedule
	if s.Scheduler == source.Maglev {
		what, can = "scheduler maglev", canHash
	}
	if s.Scheduler != "" {
		if list := refuse(modes, can, what, source.At("scheduler")); list != nil {
			return list
		}
	}
	return unknownScheduler(s.Scheduler)
}

func refuseForward(s *source.Service, modes []string) []source.Problem {
	if !s.Forward.Answers() {
		return nil
	}
	return refuse(modes, canForward, fmt.Sprintf("forward = %q", s.Forward.Method), source.At("forward"))
}

// refuse returns what is wrong with a key that none of these modes can do; nil: one can.
func refuse(modes []string, can func(Mode) bool, what string, at source.Path) []source.Problem {
	if slices.ContainsFunc(modes, func(mode string) bool { return can(modeNamed(mode)) }) {
		return nil
	}
	return []source.Problem{{
		Path: at, Msg: fmt.Sprintf("%s is for %s mode, and this is %s mode", what, able(can), source.Either(modes)), Hint: "leave it out",
	}}
}
