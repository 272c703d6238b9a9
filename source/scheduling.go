package source

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

// NoSlowStart returns why slow_start does nothing with a scheduler; empty: it does. A weight is no
// share to those to which it is what an endpoint can bear (sh, dh, ovf), a rank (fo), or a size of
// tables (mh).
func NoSlowStart(scheduler string) string {
	switch scheduler {
	case "sh", "dh", "fo", "ovf", "mh":
		return "to it a weight is no share"
	case Maglev:
		return "each host would begin at a moment of its own, and they would choose different endpoints"
	}
	return ""
}

// Maglev is the scheduler whose every host chooses the same endpoint for a client: its
// endpoints share a table, and a hash of the client says which slot of it is the client's.
const Maglev = "maglev"

// A HashOn says what of a client is hashed, for the scheduler Maglev.
type HashOn uint8

// NotHashed: the scheduler is another one.
const (
	NotHashed HashOn = iota
	ClientIP
	ClientIPPort // every connection of a client gets an endpoint of its own
)

func (h HashOn) String() string {
	return wordOf(h, "", "client_ip", "client_ip_port")
}
