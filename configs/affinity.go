package configs

import (
	"fmt"

	"svcproxy.dev/svcproxy/source"
)

// Iptables mode remembers the clients of each endpoint in a list of xt_recent,
// which the kernel finds by walking all of them: for each rule that it is given,
// and in legacy iptables that is each rule there is, at every change. Measured on
// kernel 6.18 with iptables 1.8.9, on two busy cores: with 1,000 lists a change of another service
// takes 0.16 s in legacy, with 2,000 0.4 s, with 10,000 10 s, against 0.04, 0.03
// and 0.15 s without affinity; the nft variant takes 5.5 s to load 10,000. Of 30,000,
// 300 each of 100 services, neither had loaded any after 100 s.
const (
	manyRecent = 1000   // a warning
	maxRecent  = 10_000 // a fault, of a service alone or of all together
)

// AffinityLists returns how many lists a service with affinity needs at most: one
// for each endpoint and port, and again where local endpoints serve apart.
func AffinityLists(s *source.Service) int {
	if s.Affinity == 0 {
		return 0
	}
	n := len(s.Endpoints) * len(s.Ports)
	if s.InternalTrafficPolicy != s.ExternalTrafficPolicy {
		n *= 2
	}
	return n
}

// WarnLists says what so many lists of all services cost a mode, or nothing.
func WarnLists(n int, mode string) string {
	m := modeNamed(mode)
	if m.manyLists == 0 || n <= m.manyLists {
		return ""
	}
	return fmt.Sprintf("session affinity for %d endpoints and ports in %s mode: the kernel searches a list of them for each rule, "+
		"so that changes become slow with their square, with 2000 half a second in iptables-legacy, with 10000 ten; use nftables mode", n, m.Name)
}

// RefuseLists says that a mode cannot have so many lists of all services, or nothing.
func RefuseLists(n int, mode string) string { return tooMany(n, mode, " of all services") }

func tooMany(n int, mode, of string) string {
	m := modeNamed(mode)
	if m.maxLists == 0 || n <= m.maxLists {
		return ""
	}
	return fmt.Sprintf("session affinity for %d endpoints and ports%s is more than %s mode can have, %d", n, of, m.Name, m.maxLists)
}

// refuseLists returns what is wrong with a service that alone needs too many in the only mode.
func refuseLists(s *source.Service, modes []string) []source.Problem {
	if len(modes) != 1 {
		return nil
	}
	msg := tooMany(AffinityLists(s), modes[0], "")
	if msg == "" {
		return nil
	}
	return []source.Problem{{Path: source.At("session_affinity"), Msg: msg, Hint: "leave it out, or use nftables mode"}}
}
