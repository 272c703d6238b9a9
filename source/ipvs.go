package source

import (
	"fmt"
	"strings"
)

// SchedulerFlags is a set of flags of an IPVS scheduler.
type SchedulerFlags uint8

// The flags. Fallback: a client whose endpoint has weight 0 or is full goes to another one. Port: the
// client's port is hashed with its address. The last three are of schedulers that give them no name.
const (
	SHFallback SchedulerFlags = 1 << iota
	SHPort
	MHFallback
	MHPort
	Flag1
	Flag2
	Flag3
)

// EachSchedulerFlag are the single flags, in the order in which they are shown.
var EachSchedulerFlag = []SchedulerFlags{SHFallback, SHPort, MHFallback, MHPort, Flag1, Flag2, Flag3}

var schedulerFlagWords = []string{"sh-fallback", "sh-port", "mh-fallback", "mh-port", "flag-1", "flag-2", "flag-3"}

// String returns the flags as ipvsadm writes them, joined by commas.
func (f SchedulerFlags) String() string { return flagText(f, EachSchedulerFlag, schedulerFlagWords) }

// MaxConnectionLimit is the most that MaxConnections and MinConnections of an endpoint can be; ipvsadm
// has the same.
const MaxConnectionLimit = 1<<31 - 1

// FlagsOfScheduler returns the flags that a scheduler of IPVS has.
func FlagsOfScheduler(name string) SchedulerFlags {
	switch name {
	case "sh":
		return SHFallback | SHPort
	case "mh":
		return MHFallback | MHPort
	}
	return Flag1 | Flag2 | Flag3
}

// schedulerFlags finds flags that the scheduler does not have.
func (v *validator) schedulerFlags() {
	f, at := v.SchedulerFlags, At("scheduler_flags")
	if f == 0 {
		return
	}
	switch v.Scheduler {
	case "":
		v.fault(at, "scheduler_flags without scheduler", "name it: each scheduler has flags of its own")
		return
	case Maglev:
		v.fault(at, "scheduler maglev has its flags from hash_on", "leave it out: mh-port is hash_on = \"client_ip_port\", and mh-fallback is always set")
		return
	}
	has := FlagsOfScheduler(v.Scheduler)
	if wrong := f &^ has; wrong != 0 {
		v.fault(at, fmt.Sprintf("scheduler %s has no %s", Excerpt(v.Scheduler), Either(strings.Split(wrong.String(), ","))),
			"want "+Either(strings.Split(has.String(), ",")))
	}
}

// onePacket finds what does not go together with one_packet.
func (v *validator) onePacket() {
	if !v.OnePacket {
		return
	}
	switch {
	case !v.HasUDP():
		v.fault(At("one_packet"), "one_packet is for UDP, and the service has no such port", `leave it out, or write protocol = "udp" in a port`)
	case !v.Forward.Answers():
		v.warn(At("one_packet"), "with one_packet IPVS translates no answer, so those of endpoints do not reach clients",
			`this is for packets without answers; else endpoints have to answer clients themselves: forward = "direct" or "tunnel"`)
	}
}

// connectionLimits finds limits that contradict each other: the kernel refuses them.
func (v *validator) connectionLimits(i int, e *Endpoint) {
	switch at := At("endpoints", i, "min_connections"); {
	case e.MinConnections > 0 && e.MaxConnections == 0:
		v.fault(at, "min_connections without max_connections", "it says when an endpoint that was full gets connections again")
	case e.MinConnections > e.MaxConnections:
		v.fault(at, fmt.Sprintf("min_connections %d is more than max_connections %d", e.MinConnections, e.MaxConnections), "")
	}
}
