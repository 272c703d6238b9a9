//go:build vm

package ipvs

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// TestConformance takes the families by turns, for in a guest each step takes seconds; with SVCPROXY_SOAK both for each test.
func TestConformance(t *testing.T) {
	soak := os.Getenv("SVCPROXY_SOAK") != ""
	ran := 0
	backendtest.Run(t, func(t *testing.T, test func(*backendtest.Host[*Backend])) {
		fams := families
		if !soak {
			fams = families[ran%2:][:1]
		}
		ran++
		in(t, fams, func(h *host) {
			h.opts.DrainTimeout, h.opts.TCPTimeout = 0, 1000*time.Second // what leaves goes at once
			h.foreign()
			h.Host.Dump, h.Objects, h.Named, h.Compare = h.dump, h.objects, named, h.compareStates
			h.Transitions, h.Slow = 3, !soak // each takes seconds in a guest
			h.Host.Foreign = func() {
				h.ipvsadm("-A -t " + netip.AddrPortFrom(h.endpoint(2).Addr(), 81).String() + " -s wrr")
			}
			h.Fixed = []*policy.Resolved{
				h.service("web", 90, source.TCP, 0, 1), h.service("dns", 91, source.UDP, 0), h.nodePort("node", 30090, 2),
			}
			h.damages()
			h.Restart()
			test(h.Host)
		})
	})
}

func (h *host) damages() {
	web, dns, at := h.vip(90).String(), h.vip(91).String(), h.endpoint(0).String()
	device := " " + h.vip(90).Addr().String() + " dev svcproxy0"
	for _, d := range []struct{ name, do string }{
		{"all servers removed", "ipvsadm -C"},
		{"device removed", "ip link del svcproxy0"},
		{"servers and device removed", "ipvsadm -C; ip link del svcproxy0"},
		{"destination removed", "ipvsadm -d -t " + web + " -r " + at},
		{"destination added", "ipvsadm -a -u " + dns + " -r " + h.endpoint(3).String() + " -m -w 1"},
		{"weight changed", "ipvsadm -e -t " + web + " -r " + at + " -m -w 7"},
		{"threshold set", "ipvsadm -e -t " + web + " -r " + at + " -m -w 1 -x 5"},
		{"scheduler changed", "ipvsadm -E -t " + web + " -s rr"},
		{"persistence", "ipvsadm -E -t " + web + " -s wrr -p 60"},
		{"chains flushed", h.flush()},
		{"chains flushed and sets destroyed", h.flush() + "; for s in $(ipset list -n | grep ^SVCP-); do ipset destroy $s; done"},
		{"member of a set removed", "for s in $(ipset list -n | grep ^SVCP-SERVED); do ipset flush $s; done"},
		{"timeout changed", "ipvsadm --set 900 120 300"},
		{"address removed", "ip addr del" + device},
		{"address added", "ip addr add " + h.vip(99).Addr().String() + " dev svcproxy0"},
	} {
		h.Damages = append(h.Damages, backendtest.Damage{Name: d.name, Do: func() {
			run(h, "sh", "-ec", d.do)
			if strings.Contains(d.do, "ipvsadm -C") {
				h.foreign()
			}
		}})
	}
}

// flush returns the commands that flush all of iptables.
func (h *host) flush() string {
	tool := h.tool()
	var words []string
	for _, table := range []string{"nat", "filter", "mangle"} {
		words = append(words, fmt.Sprintf("%s -t %s -F; %s -t %s -X", tool, table, tool, table))
	}
	return strings.Join(words, "; ")
}

// dump returns chains, sets, servers, devices and addresses.
func (h *host) dump() string {
	h.Helper()
	addrs := strings.Split(run(h, "sh", "-c", `ip -o addr | awk '!/scope link/ { print $2, $4 }'; ip -o link | awk '{ print $2 }'`), "\n")
	slices.Sort(addrs)
	return strings.Join(slices.Concat([]string{backendtest.Saved(h, h.tool()+"-save")}, h.servers(), addrs), "\n")
}

// foreign makes what another program has, and returns its servers: they are on an address of
// another device, on a port that a service may have elsewhere.
func (h *host) foreign() []string {
	h.Helper()
	at := netip.AddrPortFrom(h.endpoint(3).Addr(), 30080)
	run(h, "sh", "-c", "ipset create FOREIGN hash:ip 2>/dev/null || true")
	lines := []string{"-A -t " + at.String() + " -s lc", "-a -t " + at.String() + " -r " + h.endpoint(1).String() + " -m -w 5"}
	for _, line := range lines {
		h.ipvsadm(line)
	}
	return lines
}

// objects lists what is ours: everything but what foreign made.
func (h *host) objects() map[string]string {
	h.Helper()
	tool := h.tool()
	all := map[string]string{}
	backendtest.FilterObjects(all, tool, backendtest.Saved(h, tool+"-save"))
	for table := range strings.Lines(run(h, "sh", "-c", "nft list tables | grep SVCP || true")) {
		all[strings.TrimSpace(table)] = ""
	}
	all["timeouts of IPVS"] = run(h, "ipvsadm", "-L", "--timeout")
	for _, line := range h.servers() {
		if strings.Contains(line, h.endpoint(3).Addr().String()) && strings.Contains(line, ":30080") {
			continue
		}
		kind := map[bool]string{true: "virtual server ", false: "destination "}[strings.HasPrefix(line, "-A ")]
		name, holds := named(kind + line)
		all[name] = holds
	}
	for line := range strings.Lines(run(h, "sh", "-c", "ip -o addr show dev svcproxy0 2>/dev/null | awk '!/scope link/ { print $4 }'; ip -o link show dev svcproxy0 2>/dev/null | awk '{ print \"device\" }'")) {
		switch addr, _, _ := strings.Cut(strings.TrimSpace(line), "/"); addr {
		case "":
		case "device":
			all["device svcproxy0"] = ""
		default:
			all["address "+addr+" of svcproxy0"] = ""
		}
	}
	return all
}

// named returns a server, or a destination as part of its server, and what ipvsadm says
// of them.
func named(planned string) (name, holds string) {
	server, isServer := strings.CutPrefix(planned, "virtual server ")
	dest, isDest := strings.CutPrefix(planned, "destination -a ")
	switch {
	case isServer:
		w := strings.Fields(strings.TrimPrefix(server, "-A "))
		return "virtual server " + w[0] + " " + w[1], strings.Join(w[2:], " ")
	case isDest:
		w := strings.Fields(dest) // -t ADDRESS -r ADDRESS -m -w WEIGHT
		return "virtual server " + strings.Join(w[:4], " "), strings.Join(w[4:], " ")
	}
	return planned, ""
}

func (h *host) compareStates(before, after *policy.State) ([]proxier.Change, error) {
	return Compare(before, after, h.opts)
}
