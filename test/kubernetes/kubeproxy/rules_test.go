//go:build netns

package kubeproxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	sysctl "k8s.io/component-helpers/node/util/sysctl/testing"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
	iptablestest "k8s.io/kubernetes/pkg/util/iptables/testing"
)

// rules are what kube-proxy has iptables-restore make, by table and chain.
type rules map[string]map[string][]*rule

// A rule is one line of them. Of what it matches, what is not set matches everything.
type rule struct {
	owner    string // the service that a comment of the shared chains names, as namespace/name
	src, dst *netip.Prefix
	not      map[string]bool // of the options of matches
	protocol string
	port     uint16
	in       string // interface; ends in + for all that begin so
	fromHost bool   // from an address of this node
	sometimes,
	sticky bool // matches who is remembered, for seconds
	seconds int
	target  string
	to      netip.AddrPort // of DNAT
}

// A restored is an iptables that keeps what it is told.
type restored struct {
	*iptablestest.FakeIPTables
	text string
}

func (r *restored) RestoreAll(data []byte, _ utiliptables.FlushFlag, _ utiliptables.RestoreCountersFlag) error {
	r.text = string(data)
	return nil
}

// nobodys is no address of this host, so that kube-proxy listens nowhere.
var nobodys = []string{"192.0.2.99/32", "2001:db8::99/128"}

// kubeProxy returns the rules of kube-proxy for what there is, in one family.
func kubeProxy(t *testing.T, c *cluster, f family) rules {
	t.Helper()
	ipt := &restored{FakeIPTables: iptablestest.NewFake()}
	if f.api == core.IPv6Protocol {
		ipt.FakeIPTables = iptablestest.NewIPv6Fake()
	}
	p, err := iptables.NewProxier(context.Background(), f.api, ipt, sysctl.NewFake(), time.Hour, 0, c.masqueradeAll, false, 14,
		c.detector(f), nodeName, net.ParseIP(f.primary), nil, nil, nobodys, false)
	if err != nil {
		t.Fatal(err)
	}
	if c.zone != "" {
		p.OnTopologyChange(map[string]string{core.LabelTopologyZone: c.zone})
	}
	for _, s := range c.services {
		if selects(forServices, s.Labels) {
			p.OnServiceAdd(s)
		}
	}
	for _, s := range c.slices {
		if selects(forSlices, s.Labels) {
			p.OnEndpointSliceAdd(s)
		}
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	out, err := parseRules(ipt.text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Which objects kube-proxy asks for (cmd/kube-proxy/app/server.go): by the labels that they do not have.
var (
	forServices = []string{"service.kubernetes.io/service-proxy-name"}
	forSlices   = []string{core.IsHeadlessService}
)

func selects(without []string, labels map[string]string) bool {
	for _, l := range without {
		if _, has := labels[l]; has {
			return false
		}
	}
	return true
}

// detector is what kube-proxy knows of local sources.
func (n *node) detector(f family) proxyutil.LocalTrafficDetector {
	if n.bridge {
		return proxyutil.NewDetectLocalByBridgeInterface(bridge)
	}
	for _, p := range n.pods {
		if p == f.pods {
			return proxyutil.NewDetectLocalByCIDR(p)
		}
	}
	return proxyutil.NewNoOpLocalDetector()
}

func parseRules(text string) (rules, error) {
	out := rules{}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			out[table] = map[string][]*rule{}
		case strings.HasPrefix(line, "-A "):
			chain, r, err := parseRule(line)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", line, err)
			}
			out[table][chain] = append(out[table][chain], r)
		}
	}
	return out, nil
}

// words splits a line at blanks, but not within quotes.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

// parseRule refuses what it does not know: a match that is passed over would
// make rules mean something else.
func parseRule(line string) (chain string, r *rule, err error) {
	r = &rule{not: map[string]bool{}}
	list := words(line)
	negated := false
	for i := 0; i < len(list); i++ {
		option, arg := list[i], ""
		if option == "!" {
			negated = true
			continue
		}
		if options[option] > 0 && i+1 < len(list) {
			i++
			arg = list[i]
		}
		if option == "-A" {
			chain = arg
		} else if err := r.take(option, arg); err != nil {
			return "", nil, err
		}
		r.not[option] = r.not[option] || negated
		negated = false
	}
	return chain, r, nil
}

// options are those that may occur, with how many arguments they have.
var options = map[string]int{
	"-A": 1, "-m": 1, "--comment": 1, "-s": 1, "-d": 1, "-p": 1, "--dport": 1, "-i": 1, "--src-type": 1, "--dst-type": 1, "--mode": 1, "--probability": 1,
	"--name": 1, "--seconds": 1, "--rcheck": 0, "--reap": 0, "--set": 0, "-j": 1, "--to-destination": 1,
	"--mark": 1, "--xor-mark": 1, "--or-mark": 1, "--ctstate": 1, "--random-fully": 0, "--nfacct-name": 1,
}

func (r *rule) take(option, arg string) (err error) {
	if _, known := options[option]; !known {
		return fmt.Errorf("option %q is not known", option)
	}
	switch option {
	case "--comment":
		first, _, _ := strings.Cut(arg, " ")
		r.owner, _, _ = strings.Cut(first, ":")
	case "-s":
		r.src, err = parsePrefix(arg)
	case "-d":
		r.dst, err = parsePrefix(arg)
	case "-p":
		r.protocol = arg
	case "--dport":
		var n uint64
		n, err = strconv.ParseUint(arg, 10, 16)
		r.port = uint16(n)
	case "-i":
		r.in = arg
	case "--src-type":
		r.fromHost = arg == "LOCAL"
	case "--probability":
		r.sometimes = true
	case "--rcheck":
		r.sticky = true
	case "--seconds":
		r.seconds, err = strconv.Atoi(arg)
	case "-j":
		r.target = arg
	case "--to-destination":
		r.to, err = netip.ParseAddrPort(arg)
	}
	return err
}

func parsePrefix(text string) (*netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		p := netip.PrefixFrom(a, a.BitLen())
		return &p, err
	}
	p, err := netip.ParsePrefix(text)
	return &p, err
}

// A packet is the first of a connection.
type packet struct {
	src      netip.Addr
	fromHost bool // sent by this node itself, or from an address of it
	in       string
	dst      netip.Addr
	protocol string
	port     uint16
	nodePort bool // to an address of this node, where node ports are served
}

// An outcome is what becomes of a packet.
type outcome struct {
	action   string                  // balance, reject, drop or none
	targets  map[netip.AddrPort]bool // true: masqueraded
	affinity time.Duration
}

func (o outcome) String() string {
	var parts []string
	for t, masqueraded := range o.targets {
		parts = append(parts, fmt.Sprintf("%s masquerade=%v", t, masqueraded))
	}
	slices.Sort(parts)
	return fmt.Sprintf("%s %s affinity=%s", o.action, parts, o.affinity)
}

// meets says what becomes of a packet by what there is of one service: what several
// have in common is for the test to know, not for the order in which kube-proxy's maps are walked.
func (rs rules) meets(owner string, p packet) outcome {
	w := walk{rs: rs, owner: owner, p: p, out: outcome{action: "none", targets: map[netip.AddrPort]bool{}}}
	first := "KUBE-SERVICES"
	if p.nodePort {
		first = "KUBE-NODEPORTS"
	}
	if w.nat(first, false) {
		w.out.action = "balance"
		return w.out
	}
	// In OUTPUT there is no jump to KUBE-EXTERNAL-SERVICES, in kube-proxy's nftables mode there is.
	for _, chain := range []string{"KUBE-PROXY-FIREWALL", "KUBE-EXTERNAL-SERVICES", "KUBE-SERVICES"} {
		for _, r := range rs["filter"][chain] {
			if w.matches(chain, r) && (r.target == "DROP" || r.target == "REJECT") {
				w.out.action = strings.ToLower(r.target)
				return w.out
			}
		}
	}
	return w.out
}

// A walk follows one packet.
type walk struct {
	rs    rules
	owner string
	p     packet
	out   outcome
}

// shared are the chains that have rules of all services.
var shared = map[string]bool{"KUBE-SERVICES": true, "KUBE-NODEPORTS": true, "KUBE-EXTERNAL-SERVICES": true, "KUBE-PROXY-FIREWALL": true}

func (w *walk) matches(chain string, r *rule) bool {
	if shared[chain] && r.owner != w.owner {
		return false
	}
	if r.dst == nil && r.port != 0 && chain == "KUBE-EXTERNAL-SERVICES" && !w.p.nodePort { // a node port
		return false
	}
	return (r.src == nil || r.src.Contains(w.p.src) != r.not["-s"]) &&
		(r.dst == nil || r.dst.Contains(w.p.dst) != r.not["-d"]) &&
		(r.protocol == "" || r.protocol == w.p.protocol) &&
		(r.port == 0 || r.port == w.p.port) &&
		(r.in == "" || (r.in == w.p.in) != r.not["-i"]) &&
		(!r.fromHost || w.p.fromHost)
}

// nat reports whether every packet of this kind ends in the chain, translated.
func (w *walk) nat(chain string, masqueraded bool) bool {
	for _, r := range w.rs["nat"][chain] {
		if !w.matches(chain, r) {
			continue
		}
		switch {
		case r.sticky: // nobody is remembered yet
			w.out.affinity = time.Duration(r.seconds) * time.Second
		case r.target == "KUBE-MARK-MASQ":
			masqueraded = true
		case r.target == "DNAT":
			w.out.targets[r.to] = masqueraded
			return true
		case r.target == "":
		case w.nat(r.target, masqueraded) && !r.sometimes:
			return true
		}
	}
	return false
}
