package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Read follows packets from PREROUTING of table nat to the rules that rewrite their
// destination.
func Read(in reader.Input) *reader.Result {
	w := &walker{Result: &reader.Result{At: reader.Position{File: in.Name}}, rules: readRules(in), fronts: map[frontKey]*frontend{}, leads: map[string]bool{},
		named: map[int]bool{}, before: map[frontKey][]exit{}, pools: map[*reader.Service]poolIndex{}}
	if len(w.rules.nat["PREROUTING"]) == 0 {
		w.Fail("the table nat has no rules in PREROUTING")
	}
	w.walk("PREROUTING", match{chance: 1}, 0)
	w.firewalls()
	w.unreached()
	w.withoutEndpoints()
	w.kube()
	w.KeepsPods(in.Name)
	ofKube := len(w.Services)
	w.plain()
	for _, r := range w.rules.elsewhere {
		w.Note(r.at, "a rule about sources of table "+source.Excerpt(r.table)+" is left out: it holds as long as it stays in iptables",
			saysWho+"; in ipvs mode packets do not get to chain FORWARD")
	}
	if slices.ContainsFunc(w.Services[ofKube:], (*reader.Service).Masquerades) {
		w.KeepsClients(in.Name)
	}
	return w.Result
}

// unreached notes the rules that no packet from PREROUTING gets to.
func (w *walker) unreached() {
	for _, r := range w.rules.order {
		if r.rewrites() && !w.named[r.at.Line] {
			hint := ""
			if r.chain == "OUTPUT" {
				hint = "clients on this host reach services too: write one with that address and port"
			}
			w.Note(r.at, fmt.Sprintf("%s in chain %s is left out: no packet from PREROUTING gets there", r.name(match{dst: r.dst.Prefix}), source.Printable(r.chain)), hint)
		}
	}
}

// walk follows packets through a chain.
func (w *walker) walk(chain string, m match, depth int) {
	if depth > reader.MaxDepth {
		return // a loop, which the kernel refuses
	}
	m.svl = m.svl || strings.HasPrefix(chain, "KUBE-SVL-")
	for _, r := range w.rules.nat[chain] {
		w.step(1 + len(m.ports)*len(r.ports)/reader.MaxPorts)
		switch {
		case r.ends() && r.always(): // nothing gets to what follows
			if r.target != "RETURN" {
				w.exit(r, &m)
			}
			return
		case r.target == "DNAT":
			w.leaf(r, m)
		case r.rewrites():
			w.named[r.at.Line] = true
			w.Note(r.at, otherTargets[r.target].Of(r.name(match{dst: r.dst.Prefix})), otherTargets[r.target].Hint)
		case strings.HasPrefix(r.target, "SVCP-"):
			w.Note(r.at, "rules of svcproxy are left out", "")
			continue
		case !r.ends() && w.leadsOn(r.target, 0):
			if next, ok := m.and(r); ok {
				w.walk(r.target, next, depth+1)
			}
		}
		if r.rewrites() || r.ends() || r.goesTo {
			w.exit(r, &m)
		}
	}
}

// leadsOn reports whether a chain leads to a rule that rewrites the destination, or that ends the way of packets.
func (w *walker) leadsOn(chain string, depth int) bool {
	known, seen := w.leads[chain]
	if seen || depth > reader.MaxDepth {
		return known
	}
	w.leads[chain] = false
	w.leads[chain] = slices.ContainsFunc(w.rules.nat[chain], func(r rule) bool {
		return r.rewrites() || r.ends() && r.target != "RETURN" || w.leadsOn(r.target, depth+1)
	})
	return w.leads[chain]
}

// leaf notes where a rule sends what gets to it.
func (w *walker) leaf(r rule, m match) {
	m, ok := m.and(r)
	if !ok {
		return
	}
	w.named[r.at.Line] = true
	to, err := w.destinations(r.destination)
	leave := func(why, hint string) { w.Note(r.at, r.name(m)+" is left out: "+why, hint) }
	switch {
	case err != nil:
		leave(err.Error(), "")
	case m.limited != "":
		leave("no service is chosen by "+source.Excerpt(m.limited), "write one with the addresses, ports and source_ranges that are used")
	case m.protocol == 0 || m.ports == nil:
		leave("it is of all ports or all protocols", "write a service with the ports that are used")
	case m.dst.IsValid() && !m.dst.IsSingleIP():
		leave("it is of the whole range "+m.dst.String(), "write a service with the addresses that are used")
	case m.dst.IsValid() && source.Unusable(m.dst.Addr()) != "":
		leave(fmt.Sprintf("%s is %s", m.dst.Addr(), source.Unusable(m.dst.Addr())), "")
	default:
		for _, port := range m.ports {
			some, all := w.meets(m, port)
			if all {
				w.Note(r.at, fmt.Sprintf("%s is left out: line %d has all connections to port %d before it", r.name(m), some[0].rule.at.Line, port), "")
				continue
			}
			w.Grow(1 + len(to))
			f := w.front(frontKey{m.dst.Addr(), m.protocol, port})
			f.leaves = append(f.leaves, leaf{match: m, at: r.at, to: to, persistent: r.persistent && len(to) > 1, before: some})
		}
	}
}

func (w *walker) front(k frontKey) *frontend {
	f := w.fronts[k]
	if f == nil {
		f = &frontend{frontKey: k}
		w.fronts[k] = f
		w.order = append(w.order, f)
	}
	return f
}

// destinations reads what DNAT rewrites to: ADDRESS, ADDRESS-ADDRESS, with :PORT behind it.
func (w *walker) destinations(text string) (to []netip.AddrPort, err error) {
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && (strings.Count(text, ":") == 1 || strings.Contains(text[:i], "]")) {
		host, port = text[:i], text[i+1:]
	}
	if host == "" {
		return nil, fmt.Errorf("it rewrites the port alone")
	}
	if strings.ContainsAny(port, "-/") {
		return nil, fmt.Errorf("it rewrites ports to the range %s", source.Excerpt(port))
	}
	n, err := reader.PortOf(port)
	if err != nil {
		return nil, err
	}
	list, err := w.AddrRange(strings.NewReplacer("[", "", "]", "").Replace(host))
	for _, a := range list {
		to = append(to, netip.AddrPortFrom(a, n))
	}
	return to, err
}

// withoutEndpoints notes the services for which kube-proxy refuses connections.
func (w *walker) withoutEndpoints() {
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS"} {
		for _, r := range w.rules.filter[chain] {
			if name, what, found := strings.Cut(r.comment, " has no "); found && (r.target == "REJECT" || r.target == "DROP") {
				w.Note(r.at, fmt.Sprintf("%s of service %s is left out: it has no %s", r.target, source.Excerpt(name), source.Printable(what)), "convert the objects of Kubernetes")
			}
		}
	}
}

// firewalls reads who may use the addresses of load balancers: newer versions of kube-proxy drop the
// others in table filter.
func (w *walker) firewalls() {
	for _, r := range w.rules.filter["KUBE-PROXY-FIREWALL"] {
		for _, port := range r.ports {
			f := w.fronts[frontKey{r.dst.Addr(), r.protocol, port}]
			if f == nil || !r.dst.IsSingleIP() {
				continue
			}
			w.step(len(w.rules.filter[r.target]))
			for _, inner := range w.rules.filter[r.target] {
				if inner.target == "RETURN" && inner.src.IsValid() && !inner.src.not && len(f.ranges) < 1000 {
					f.ranges = append(f.ranges, inner.src.Masked())
				}
			}
		}
	}
}
