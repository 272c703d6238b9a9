package configs

import (
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// schedulerNames are those of Linux, net/netfilter/ipvs/ip_vs_*.c, in the order in which messages list them.
var schedulerNames = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "fo", "ovf", "twos"}

// weightless are those that give no heed to weights except for 0: rr and lc count destinations or
// connections only, and dh gives each destination as many addresses as any other.
var weightless = []string{"rr", "lc", "dh"}

// unknownScheduler returns what is wrong with the scheduler that a service names.
func unknownScheduler(name string) []source.Problem {
	names := slices.Concat(schedulerNames, []string{source.Maglev})
	if name == "" || slices.Contains(names, name) {
		return nil
	}
	return []source.Problem{{Path: source.At("scheduler"), Msg: fmt.Sprintf("unknown scheduler %q", name), Hint: decode.WantWord(name, names)}}
}

// Warn returns what of a service the modes it may be used in will pass over, and what the service
// passes over of settings.
func (s *Settings) Warn(svc *source.Service, modes ...string) []source.Problem {
	return append(s.warnWeights(svc, modes), s.warnForward(svc)...)
}

// warnForward warns of a setting that a service cannot follow.
func (s *Settings) warnForward(svc *source.Service) []source.Problem {
	if !svc.Forward.Answers() || s.Masquerade != "all" || svc.Masquerade != source.MasqueradeAsSet {
		return nil
	}
	return []source.Problem{{
		Path: source.At("forward"), Warning: true,
		Msg: fmt.Sprintf("masquerade is \"all\", and forward = %q keeps the client's address", svc.Forward.Method),
	}}
}

func (s *Settings) warnWeights(svc *source.Service, modes []string) []source.Problem {
	name := svc.Scheduler
	if name == "" {
		name = s.IPVS.Scheduler
	}
	passes := func(mode string) bool { return !modeNamed(mode).Scheduler }
	if slices.ContainsFunc(modes, passes) || !slices.Contains(weightless, name) || !weightsDiffer(svc.Endpoints) {
		return nil
	}
	return []source.Problem{{
		Path: source.At("endpoints"), Warning: true,
		Msg:  fmt.Sprintf("the weights of endpoints differ, and scheduler %s gives them no heed", name),
		Hint: "name one that does, such as wrr",
	}}
}

// weightsDiffer reports whether two endpoints that get connections are to get different shares.
func weightsDiffer(list []source.Endpoint) bool {
	var first uint16
	for _, e := range list {
		switch {
		case e.Weight == 0 || e.Weight == first:
		case first == 0:
			first = e.Weight
		default:
			return true
		}
	}
	return false
}
