package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Text returns the virtual servers of a State as ipvsadm-save prints them, each
// with its destinations and their thresholds, which that leaves out, and the addresses of our device as ip takes them, in order of
// address, protocol and port.
func Text(st *policy.State, scheduler string) []string {
	c := newFrontendPairs(st)
	pools := map[*policy.Pool][]dest{}
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(c.by), compareKeys) {
		s := c.server(key, scheduler, pools)
		lines = append(lines, serverText(s.Server))
		for _, d := range s.dests {
			lines = append(lines, destText(key, d))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(st.BoundAddrs), netip.Addr.Compare) {
		lines = append(lines, fmt.Sprintf("ip address add %s/%d dev %s", a, a.BitLen(), links.Own))
	}
	return lines
}

// serverText returns a server as ipvsadm takes it.
func serverText(s lvs.Server) string {
	text := fmt.Sprintf("-A %s -s %s", s.Key, s.Scheduler)
	if s.Persistence > 0 {
		text += fmt.Sprintf(" -p %d", s.Persistence)
	}
	if s.OnePacket {
		text += " -o"
	}
	return text + flagText(s)
}

// flagText returns the flags of a scheduler as ipvsadm takes them: those of sh and mh have names.
func flagText(s lvs.Server) string {
	var words []string
	for i, name := range []string{"fallback", "port", ""} {
		if s.Flags&(lvs.FallBack<<i) == 0 {
			continue
		}
		word := fmt.Sprintf("flag-%d", i+1)
		if (s.Scheduler == "sh" || s.Scheduler == "mh") && name != "" {
			word = s.Scheduler + "-" + name
		}
		words = append(words, word)
	}
	if words == nil {
		return ""
	}
	return " -b " + strings.Join(words, ",")
}

func destText(k lvs.Key, d dest) string {
	return fmt.Sprintf("-a %s -r %s %s%s", k, d.AddrPort, d.way.Text(d.weight), d.limits.Text())
}
