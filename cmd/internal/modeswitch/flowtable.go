package modeswitch

import (
	"slices"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
)

// modeWarnings says what of the settings a mode does not do, and what its backends warn of.
func modeWarnings(s configs.Settings, am *Active) []string {
	var list []string
	for _, b := range am.Backends {
		if w, warns := b.(proxier.Warner); warns {
			list = append(list, w.Warnings()...)
		}
	}
	slices.Sort(list)
	return append(s.WarnOfMode(am.Mode.Mode), list...)
}

// tellFlowtable has the log say that a mode has no flow table, where settings ask for one.
func (sw *Switch) tellFlowtable(am *Active) {
	if len(sw.Fixed.WarnOfMode(am.Mode.Mode)) > 0 {
		sw.Log.Warn("the settings ask for a flowtable, which this mode does not have", "mode", am.Name)
	}
}
