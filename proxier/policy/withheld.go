package policy

import (
	"net/netip"

	"svcproxy.dev/svcproxy/source"
)

// An Announcement is one address of a service that is to be announced by one of the means, and
// why it is not.
type Announcement struct {
	Addr     netip.Addr
	Means    source.Means // one
	Withheld Withheld
}

// Withheld is why an address is not announced. The zero Withheld: it is.
type Withheld uint8

// The causes. All but the first ones and the last ones are of the service, as Resolve finds it.
const (
	NotWithheld     Withheld = iota
	NoMeans                  // nothing announces by these means, see Announcer.Unavailable
	HostDrained              // this host is
	Refused                  // the file is refused, and no earlier version of it is in use
	DisabledService          // by its file
	CarriedHere              // BGP: an interface of this host carries it, other than lo
	NotCarried               // L2: no interface of this host carries it
	PortsTaken               // others have all of its ports
	NoEndpoints              // the service has none that could ever serve it here
	NoUsable                 // it has some, and cannot use them here
	WantedUnusable           // the same, and all for what people asked: drained, weight 0, disabled
	AllFail                  // no endpoint passes its check, whatever all_failed does with that
	Unproven                 // no endpoint that is used has passed its check yet
	LeavingHere              // policy local: the endpoints here terminate, and other nodes have some that are ready
	NotHeld                  // the kernel does not hold it yet
	KernelLacksIt            // the kernel cannot hold it
	NoRouter                 // BGP: nothing is in the way here, and no router hears of it, see Announcer.Unheard
	withheldCount
)

// String returns one word that does not change between versions, as for a label of a metric.
func (w Withheld) String() string {
	return [withheldCount]string{
		"", "no_means", "host_drained", "refused", "disabled", "own_address", "not_own_address", "claimed",
		"no_endpoint", "none_usable", "none_wanted", "all_failed", "unproven", "terminating", "pending", "unserved", "no_router",
	}[w]
}

// AllWithheld returns all causes but NotWithheld.
func AllWithheld() (list []Withheld) {
	for w := NotWithheld + 1; w < withheldCount; w++ {
		list = append(list, w)
	}
	return list
}

// Wanted reports whether it is so because people want it, and nothing has failed.
func (w Withheld) Wanted() bool {
	return w == HostDrained || w == DisabledService || w == NoEndpoints || w == WantedUnusable || w == LeavingHere
}
