//go:build netns && vm

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// IPVS mode needs a kernel with IPVS and dummy devices, as guests have it.
func init() {
	modes = append(modes, ipvsMode())
	for _, other := range []string{"nftables", "iptables"} {
		groups = append(groups, group{
			name: "mode change to " + other, except: []string{"nftables", "iptables"},
			drops: other == "iptables", // an nftables table cannot let pass what another drops
			cases: []testCase{{name: "traffic goes on", run: changeTo(other)}},
		})
	}
	views = append(views,
		view{command: []string{"ipvsadm", "-S", "-n"}, sorted: true, flatten: flattenServers},
		view{command: []string{"ip", "-brief", "addr"}, sorted: true, flatten: flattenAddrs})
}

// ipvsMode runs beside another program's virtual server, and rules of iptables-nft.
func ipvsMode() mode {
	const variant = "nft"
	return mode{
		name: "ipvs", variant: variant, alien: "-legacy-save",
		prepare:          prepareIPVS,
		translateForeign: func(h *Host, on bool) error { return translateForeign(h, variant, on) },
		damages: append(iptablesDamages(variant),
			damage{name: "virtual servers deleted", do: func(h *Host) error {
				if _, err := h.Run("ipvsadm", "-C"); err != nil {
					return err
				}
				return makeForeignServer(h)
			}},
			damage{name: "device deleted", do: func(h *Host) error {
				_, err := h.Run("ip", "link", "del", "svcproxy0")
				return err
			}},
			damage{name: "device emptied", do: func(h *Host) error {
				_, err := h.Run("ip", "addr", "flush", "dev", "svcproxy0")
				return err
			}},
			damage{name: "destinations deleted", do: func(h *Host) error { return editServers(h, "-a ", "-d ") }},
			damage{name: "destinations of weight 0", do: func(h *Host) error { return editServers(h, "-a ", "-e ", "-w", "0") }},
			damage{name: "another scheduler", do: func(h *Host) error { return editServers(h, "-A ", "-E ", "-s", "rr") }},
		),
	}
}

// foreignServer is a virtual server of another program, on an address that is not ours.
const foreignServer = "203.0.113.9:80"

// prepareIPVS does what svcproxy init does for IPVS, and makes the objects of others.
func prepareIPVS(h *Host) error {
	return cmp.Or(PrepareIPVS(h), makeForeign(h, "nft"), makeForeignServer(h))
}

func makeForeignServer(h *Host) error {
	_, err := h.RunInput("-A -t "+foreignServer+" -s rr\n-a -t "+foreignServer+" -r 192.0.2.9:8080 -m -w 0\n", "ipvsadm", "-R")
	return err
}

// flattenServers makes each line of ipvsadm tell whose it is: all servers are ours but one.
func flattenServers(listing string) string {
	var b strings.Builder
	for line := range strings.Lines(listing) {
		owner := "svcproxy0 "
		if strings.Contains(line, foreignServer) {
			owner = "foreign "
		}
		b.WriteString(owner + line)
	}
	return b.String()
}

// flattenAddrs makes a line of each address. Link-local ones come and go with links.
func flattenAddrs(listing string) string {
	var b strings.Builder
	for line := range strings.Lines(listing) {
		fields := strings.Fields(line) // device, state, addresses
		for _, addr := range fields[min(2, len(fields)):] {
			if !strings.HasPrefix(addr, "fe80:") {
				fmt.Fprintln(&b, fields[0], addr)
			}
		}
	}
	return b.String()
}

// editServers passes those lines of our servers that begin with one word back to
// ipvsadm, beginning with another and with other words for some.
func editServers(h *Host, from, to string, other ...string) error {
	return editEachServer(h, from, func(words []string) []string {
		words[0] = strings.TrimSpace(to)
		switch {
		case to == "-d ":
			return words[:5] // -d -t SERVER -r DESTINATION
		case other != nil:
			words[slices.Index(words, other[0])+1] = other[1]
		}
		return words
	})
}

func editEachServer(h *Host, prefix string, edit func(words []string) []string) error {
	listing, err := h.Run("ipvsadm", "-S", "-n")
	if err != nil {
		return err
	}
	for line := range strings.Lines(listing) {
		if !strings.HasPrefix(line, prefix) || strings.Contains(line, foreignServer) {
			continue
		}
		if words := edit(strings.Fields(line)); words != nil {
			if _, err := h.Run("ipvsadm", words...); err != nil {
				return err
			}
		}
	}
	return nil
}
