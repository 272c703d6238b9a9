//go:build netns && vm

package hosts

import (
	"cmp"

	"svcproxy.dev/svcproxy/test/lab"
)

// IPVS mode needs a kernel with IPVS, as guests have it.
func init() {
	spreadModes = append(spreadModes, spreadMode{
		name: "ipvs", held: 200, few: 40, other: "wrr",
		prepare: func(h *lab.Host) error { return cmp.Or(lab.PrepareIPVS(h), h.Sysctl("net.ipv4.vs.sloppy_tcp=1")) },
	})
}
