package healthz

import (
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// Counts say how many there are of what, as metrics tell it.
type Counts struct {
	Loop  proxier.Counts
	Files map[source.FileState]int

	Faults, Warnings int
	SettingsFaults   int // of Faults, those of svcproxy.toml
	Held             int // changes that the guard holds back
}
