package configs

import (
	"fmt"
	"slices"

	"svcproxy/source"
)

const iptables = "iptables"

// abilities are what only one mode can do, by the key that asks for it. A mode
// that cannot do a thing refuses it instead of passing the key over.
var abilities = map[string]string{
	"scheduler":            "ipvs",   // others choose endpoints by rules, at random
	"localhost_node_ports": iptables, // as in kube-proxy
}

// can tells whether a mode can do what a key asks for.
func can(mode, key string) bool { return abilities[key] == mode }

// Check returns what is wrong with settings together. It is for the effective
// ones: a flag may set right what the file alone contradicts.
func (s *Settings) Check() error {
	if s.LocalhostNodePorts && s.Mode != "auto" && !can(s.Mode, "localhost_node_ports") {
		return fmt.Errorf("localhost_node_ports is for %s mode, and mode is %q", abilities["localhost_node_ports"], s.Mode)
	}
	return nil
}

// Refuse returns what of a service none of these modes can do.
func Refuse(s *source.Service, modes ...string) []source.Problem {
	return append(refuseScheduler(s, modes), refuseLists(s, modes)...)
}

func refuseScheduler(s *source.Service, modes []string) []source.Problem {
	able := func(mode string) bool { return can(mode, "scheduler") }
	if s.Scheduler == "" || slices.ContainsFunc(modes, able) {
		return unknownScheduler(s.Scheduler)
	}
	return []source.Problem{{
		Path: source.At("scheduler"),
		Msg:  fmt.Sprintf("scheduler is for %s mode, and this is %s mode", abilities["scheduler"], source.Either(modes)),
		Hint: "leave it out",
	}}
}
