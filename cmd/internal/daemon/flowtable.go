package daemon

import (
	"slices"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
)

// flowtableWarnings says what of [nftables] flowtable a mode does not do. A mode whose backends
// are Warners tells of itself.
func flowtableWarnings(s configs.Settings, am *activeMode) (list []string) {
	if list := s.WarnOfMode(am.Mode.Mode); len(list) > 0 {
		return list
	}
	for _, b := range am.backends {
		if w, warns := b.(proxier.Warner); warns {
			list = append(list, w.Warnings()...)
		}
	}
	slices.Sort(list)
	return list
}

// tellFlowtable has the log say that a mode has no flow table, where settings ask for one.
func (sw *modeSwitch) tellFlowtable(am *activeMode) {
	if len(sw.fixed.WarnOfMode(am.Mode.Mode)) > 0 {
		sw.log.Warn("the settings ask for a flowtable, which this mode does not have", "mode", am.Name)
	}
}
