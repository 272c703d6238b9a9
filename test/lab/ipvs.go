package lab

// PrepareIPVS does what svcproxy init does for IPVS. Kernels without it are the rule
// on hosts of tests; guests have it.
func PrepareIPVS(h *Host) error {
	if _, err := h.Run("modprobe", "ip_vs"); err != nil {
		return err
	}
	return h.Sysctl("net.ipv4.vs.conntrack=1", "net.ipv4.vs.expire_nodest_conn=1", "net.ipv4.vs.expire_quiescent_template=1")
}
