package loop

import (
	"maps"
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The actions of a frontend that a PartialError names.
const (
	unservedWhole  = "unserved"
	unservedInPart = "in part"
)

// kernelAction returns what the kernel does with a frontend, which is less than its action where
// it is among e. e may be nil.
func kernelAction(f *policy.Frontend, e *proxier.PartialError) (action string, targets int) {
	action, targets = f.Outside.Action.String(), len(f.Outside.Pool.Targets)
	if e == nil || f.Outside.Action != policy.Balance {
		return action, targets
	}
	switch whole, lacks := e.Frontends[f.Key]; {
	case whole:
		return unservedWhole, 0
	case lacks:
		return unservedInPart, targets
	}
	return action, targets
}

// whyUnserved returns why f does not balance: what names its service, where something does.
func whyUnserved(f *policy.Frontend, e *proxier.PartialError) string {
	all := strings.Split(e.Error(), "\n")
	for _, line := range all {
		if strings.Contains(line, f.ServicePort.Key.String()) {
			return line
		}
	}
	return all[0]
}

// whyAddrUnserved returns why the kernel lacks what an address needs.
func whyAddrUnserved(a netip.Addr, r *policy.Resolved, e *proxier.PartialError) string {
	for _, f := range r.FrontendsAt(a) {
		if action, _ := kernelAction(f, e); action == unservedWhole {
			return whyUnserved(f, e)
		}
	}
	return "the kernel cannot hold it"
}

// unservedText is the error's text; e may be nil.
func unservedText(e *proxier.PartialError) string {
	if e == nil {
		return ""
	}
	return e.Error()
}

// sameUnserved reports whether two errors say the same of frontends; both may be nil.
func sameUnserved(e, o *proxier.PartialError) bool {
	if e == nil || o == nil {
		return e == o
	}
	return maps.Equal(e.Frontends, o.Frontends)
}
