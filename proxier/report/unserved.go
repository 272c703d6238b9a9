package report

import (
	"net/netip"
	"slices"
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

// UnservedText is the error's text; e may be nil.
func UnservedText(e *proxier.PartialError) string {
	if e == nil {
		return ""
	}
	return e.Error()
}

// Lacks reports whether the kernel sends nothing to endpoints that is for an address.
func Lacks(r *policy.Resolved, a netip.Addr, e *proxier.PartialError) bool {
	return e != nil && !slices.ContainsFunc(r.FrontendsAt(a), func(f *policy.Frontend) bool {
		action, _ := kernelAction(f, e)
		return f.Outside.Action == policy.Balance && action != unservedWhole
	})
}
