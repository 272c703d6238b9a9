//go:build vm

package lab

import "errors"

// IPVS is in few kernels that tests run on, so that mode is tested in virtual machines.
func init() { modes = append(modes, ipvsMode()) }

// ipvsMode runs beside another program's rules of iptables-nft.
func ipvsMode() mode {
	const variant = "nft"
	base := iptablesMode(variant)
	return mode{
		name: "ipvs", variant: variant, alien: base.alien,
		prepare: func(h *Host) error {
			// What svcproxy init does on a host.
			return errors.Join(base.prepare(h), runIn(h, "modprobe", "-a", "ip_vs", "dummy"), h.Sysctl(
				"net.ipv4.vs.conntrack=1", "net.ipv4.vs.expire_nodest_conn=1", "net.ipv4.vs.expire_quiescent_template=1"))
		},
		translateForeign: base.translateForeign,
		damages: append(base.damages,
			damage{"virtual servers removed", func(h *Host) error { return runIn(h, "ipvsadm", "-C") }},
			damage{"device removed", func(h *Host) error { return runIn(h, "ip", "link", "delete", "svcproxy0") }},
		),
	}
}

func runIn(h *Host, name string, args ...string) error {
	_, err := h.Run(name, args...)
	return err
}
