package layout

import (
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// render returns the chains of a State with one service.
func render(t *testing.T, w *backendtest.World, res *policy.Resolved) map[string]string {
	t.Helper()
	w.Put(res.Key, res)
	r := NewRules(w.Family)
	fatal.If(t, r.Reset(w.State))
	return pictureOf(r, w.State).chains
}

func check(t *testing.T, chains map[string]string, name, want string) {
	t.Helper()
	if diff := cmp.Diff(want, chains[name]); diff != "" {
		t.Errorf("chain %s (-want +got):\n%s", name, diff)
	}
}

func TestMarksOfFrontends(t *testing.T) {
	const to = `-A SVCP-SERVICES -d 10.96.0.1/32 -p udp -m udp --dport 53 `
	const comment = `-m comment --comment "default/dns:q" `
	const nodePorts = "-A SVCP-SERVICES -d 192.0.2.1/32 -j SVCP-NODEPORTS\n-A SVCP-SERVICES -d 127.0.0.1/32 -j SVCP-NODEPORTS\n"
	for m, want := range map[policy.Masquerade]string{
		policy.NoOne:         "",
		policy.Everyone:      to + comment + "-j SVCP-MARK-MASQ\n",
		policy.NonLocal:      to + comment + "-j SVCP-MARK-NONLOCAL\n",
		policy.HostProcesses: to + "-m addrtype --src-type LOCAL " + comment + "-j SVCP-MARK-MASQ\n",
	} {
		s := backendtest.Service{Name: "dns", Port: "q", Protocol: source.UDP, Targets: backendtest.Targets(policy.IPv4, 1, 1)}
		cluster, _ := s.Pools()
		route := backendtest.Route(cluster, m, policy.Reject)
		key := policy.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}
		chains := render(t, backendtest.NewWorld(policy.IPv4), s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route}))
		check(t, chains, Services, want+to+comment+"-j "+poolChain(cluster)+"\n"+nodePorts)
		check(t, chains, poolChain(cluster), "-A "+poolChain(cluster)+" -j CONNMARK --set-xmark 0x4000/0x4000\n"+
			"-A "+poolChain(cluster)+" -p udp -j DNAT --to-destination 10.244.0.1:8080\n")
	}
}

func TestMarkChains(t *testing.T) {
	r := NewRules(policy.IPv4)
	w := backendtest.NewWorld(policy.IPv4)
	w.Host.MarkBit = 0
	fatal.If(t, r.Reset(w.State))
	chains := pictureOf(r, w.State).chains
	check(t, chains, MarkNonLocal, `-A SVCP-MARK-NONLOCAL -s 10.244.0.0/16 -j RETURN
-A SVCP-MARK-NONLOCAL -i pod+ -j RETURN
-A SVCP-MARK-NONLOCAL -i cni0 -j RETURN
-A SVCP-MARK-NONLOCAL -j MARK --set-xmark 0x1/0x1
`)
	check(t, chains, Postrouting, `-A SVCP-POSTROUTING -m conntrack --ctstate DNAT -m set --match-set SVCP-HAIRPIN-4 dst,dst,src -j MASQUERADE --random-fully
-A SVCP-POSTROUTING -m mark ! --mark 0x1/0x1 -j RETURN
-A SVCP-POSTROUTING -m conntrack ! --ctstate DNAT -j RETURN
-A SVCP-POSTROUTING -j MARK --set-xmark 0x0/0x1
-A SVCP-POSTROUTING -j MASQUERADE --random-fully
`)
	check(t, chains, Forward, "-A SVCP-FORWARD -m connmark --mark 0x1/0x1 -j ACCEPT\n")
}

// What IPVS balances does not have the state DNAT, and is masqueraded where it is marked.
func TestIPVSMasquerades(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv4)
	rules := map[string]*Rules{"ipvs": NewIPVSRules(policy.IPv4), "iptables": NewRules(policy.IPv4), "from ipvs to iptables": NewRules(policy.IPv4)}
	rules["from ipvs to iptables"].Observe(&Actual{Sets: map[string]*ipset.Listing{"SVCP-SERVED-4": {}}})
	for name, r := range rules {
		fatal.If(t, r.Reset(w.State))
		text := pictureOf(r, w.State).chains[Postrouting]
		if strings.Contains(text, "-m conntrack ! --ctstate DNAT -m ipvs ! --ipvs -j RETURN\n") != (name != "iptables") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// While ipvs mode is left the connections that it took last are marked.
func TestLastConnectionsOfIPVSAreMarked(t *testing.T) {
	r := NewRules(policy.IPv4)
	w := backendtest.NewWorld(policy.IPv4)
	fatal.If(t, r.Reset(w.State))
	if text := pictureOf(r, w.State).chains[Filter]; strings.Contains(text, "ipvs") {
		t.Errorf("a host that never had ipvs mode:\n%s", text)
	}
	r.Observe(&Actual{Sets: map[string]*ipset.Listing{"SVCP-SERVED-4": {}}})
	const want = "-A SVCP-FILTER -m ipvs --ipvs -j CONNMARK --set-xmark 0x4000/0x4000\n" +
		"-A SVCP-FILTER -m ipvs --ipvs -j RETURN\n" +
		"-A SVCP-FILTER -p tcp -m set --match-set SVCP-REJECT-4"
	if text := pictureOf(r, w.State).chains[Filter]; !strings.Contains(text, want) {
		t.Errorf("want\n%s\nin the chain:\n%s", want, text)
	}
	r.Observe(&Actual{})
	if text := pictureOf(r, w.State).chains[Filter]; strings.Contains(text, "ipvs") {
		t.Errorf("after ipvs mode has gone:\n%s", text)
	}
}

// Frontends whose routes differ do not share the chain that tells sources apart.
func TestFrontendsOfOtherRoutesHaveOtherChains(t *testing.T) {
	s := backendtest.Service{Name: "web", Protocol: source.TCP, Targets: backendtest.Targets(policy.IPv4, 1, 2)}
	s.Local = s.Targets[:1]
	cluster, local := s.Pools()
	outside := backendtest.Route(local, policy.NoOne, policy.Drop)
	frontend := func(kind policy.Kind, addr string, m policy.Masquerade) *policy.Frontend {
		key := policy.FrontendKey{Addr: netip.MustParseAddr(addr), Port: 80, Kind: kind}
		return &policy.Frontend{Key: key, Outside: outside, FromLocal: backendtest.Route(cluster, m, policy.Reject)}
	}
	a := frontend(policy.External, "203.0.113.1", policy.HostProcesses)
	b := frontend(policy.NodePort, "0.0.0.0", policy.HostProcesses)
	c := frontend(policy.External, "203.0.113.2", policy.Everyone)
	chains := render(t, backendtest.NewWorld(policy.IPv4), s.Resolve(a, b, c))
	if splitChain(a) != splitChain(b) || splitChain(a) == splitChain(c) {
		t.Errorf("chains: %s, %s and %s", splitChain(a), splitChain(b), splitChain(c))
	}
	text := func(f *policy.Frontend, lines ...string) string {
		var b strings.Builder
		for _, l := range lines {
			l = strings.NewReplacer("-g SVC", "-g "+poolChain(cluster), "-g SVL", "-g "+poolChain(local)).Replace(l)
			b.WriteString("-A " + splitChain(f) + " " + l + "\n")
		}
		return b.String()
	}
	check(t, chains, splitChain(a), text(a,
		"-m addrtype --src-type LOCAL -j SVCP-MARK-MASQ", "-m addrtype --src-type LOCAL -g SVC",
		"-s 10.244.0.0/16 -g SVC", "-i pod+ -g SVC", "-i cni0 -g SVC", "-g SVL"))
	check(t, chains, splitChain(c), text(c,
		"-m addrtype --src-type LOCAL -j SVCP-MARK-MASQ", "-m addrtype --src-type LOCAL -g SVC",
		"-s 10.244.0.0/16 -j SVCP-MARK-MASQ", "-s 10.244.0.0/16 -g SVC",
		"-i pod+ -j SVCP-MARK-MASQ", "-i pod+ -g SVC", "-i cni0 -j SVCP-MARK-MASQ", "-i cni0 -g SVC", "-g SVL"))
	check(t, chains, NodePorts, "-A SVCP-NODEPORTS -d 127.0.0.0/8 -m addrtype ! --src-type LOCAL -j RETURN\n"+
		`-A SVCP-NODEPORTS -p tcp -m tcp --dport 80 -m comment --comment "default/web" -j `+splitChain(a)+"\n")
}

func TestAffinity(t *testing.T) {
	s := backendtest.Service{Name: "web", Protocol: source.TCP, Affinity: 1500 * time.Millisecond, Targets: backendtest.Targets(policy.IPv6, 1, 2)}
	s.Targets[1].Weight = 3
	cluster, _ := s.Pools()
	route := backendtest.Route(cluster, policy.NoOne, policy.Reject)
	key := policy.FrontendKey{Addr: netip.MustParseAddr("fd00:96::1"), Port: 80}
	chains := render(t, backendtest.NewWorld(policy.IPv6), s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route}))
	name := poolChain(cluster)
	list := func(n int) string {
		return "--name " + RecentList(cluster, s.Targets[n]) + " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource"
	}
	one, two := list(0), list(1)
	if !strings.HasPrefix(one, "--name SVCP-") || one == two {
		t.Errorf("lists: %s and %s", one, two)
	}
	rule := "-A " + name + " -p tcp "
	check(t, chains, name, "-A "+name+" -j CONNMARK --set-xmark 0x4000/0x4000\n"+
		rule+"-m recent --update --seconds 2 --reap "+one+" -j DNAT --to-destination [fd00:244::1]:8080\n"+
		rule+"-m recent --update --seconds 2 --reap "+two+" -j DNAT --to-destination [fd00:244::2]:8080\n"+
		rule+"-m statistic --mode random --probability 0.25000000000 -m recent --set "+one+" -j DNAT --to-destination [fd00:244::1]:8080\n"+
		rule+"-m recent --set "+two+" -j DNAT --to-destination [fd00:244::2]:8080\n")
}

// Whatever their number and weights, targets get their shares, and no chain is long.
func TestShares(t *testing.T) {
	for _, n := range []int{1, 2, 16, 17, 256, 257, 4097} {
		targets := backendtest.Targets(policy.IPv4, 0, n)
		for i := range targets {
			targets[i].Weight = uint16(1 + i%3)
		}
		s := backendtest.Service{Name: "web", Protocol: source.TCP, Targets: targets}
		cluster, _ := s.Pools()
		chains := map[string]string{}
		NewRules(policy.IPv4).poolChains(cluster, func(_, name string, rules []byte) { chains[name] = string(rules) })
		got := map[string]float64{}
		depth := shares(t, chains, poolChain(cluster), 1, got)
		if depth > 4 {
			t.Errorf("%d targets: chains %d deep", n, depth)
		}
		total := float64(policy.WeightOf(targets))
		for _, target := range targets {
			want := float64(target.Weight) / total
			if share := got[target.String()]; math.Abs(share-want) > 1e-5*want {
				t.Fatalf("%d targets: %s gets %g, want %g", n, target, share, want)
			}
		}
	}
}

// shares follows a chain that a packet enters with chance p, and returns how deep it goes.
func shares(t *testing.T, chains map[string]string, name string, p float64, got map[string]float64) int {
	t.Helper()
	chains[name] = strings.Replace(chains[name], "-A "+name+" -j CONNMARK --set-xmark 0x1/0x1\n", "", 1) // of the first chain
	if n := strings.Count(chains[name], "\n"); n > fanOut || n == 0 {
		t.Errorf("chain %s has %d rules", name, n)
	}
	depth := 0
	for line := range strings.Lines(chains[name]) {
		words := strings.Fields(line)
		hit := p
		for i, w := range words {
			if w == "--probability" {
				f, err := strconv.ParseFloat(words[i+1], 64)
				fatal.If(t, err)
				hit = p * f
			}
		}
		p -= hit
		target := words[len(words)-1]
		if words[len(words)-2] == "-g" {
			depth = max(depth, shares(t, chains, target, hit, got))
		} else {
			got[target] += hit
		}
	}
	return depth + 1
}

func TestNodeNames(t *testing.T) {
	v4 := &tree{root: Services, addrLen: 4}
	v6 := &tree{root: Services, addrLen: 16}
	np := &tree{root: NodePorts}
	tests := []struct {
		tree   *tree
		addr   string
		port   uint16
		digits int
		depth  int
		name   string
		match  string
	}{
		{v4, "10.96.16.1", 80, 0, 1, "SVCP-SERVICES", ""},
		{v4, "10.96.16.1", 80, 5, 2, "SVCP-10.96.16.0/20", "-d 10.96.16.0/20"},
		{v4, "10.96.16.1", 80, 8, 2, "SVCP-10.96.16.1/32", "-d 10.96.16.1/32"},
		{v4, "10.96.16.1", 80, 10, 2, "SVCP-10.96.16.1:tcp", "-d 10.96.16.1/32 -p tcp"},
		{v4, "10.96.16.1", 80, 13, 2, "SVCP-10.96.16.1:tcp:80-95", "-d 10.96.16.1/32 -p tcp -m tcp --dport 80:95"},
		{v4, "10.96.161.100", 30000, 11, 2, "SVCP-TREE-6TNHMBPCV25Z6FEX", "-d 10.96.161.100/32 -p tcp -m tcp --dport 28672:32767"},
		{v6, "fd00:96::1", 80, 30, 2, "SVCP-fd00:96::/120", "-d fd00:96::/120"},
		{v6, "fd00:96::1", 80, 34, 2, "SVCP-fd00:96::1:tcp", "-d fd00:96::1/128 -p tcp"},
		{np, "::", 30000, 2, 2, "SVCP-NP:tcp", "-p tcp"},
		{np, "::", 30000, 5, 2, "SVCP-NP:tcp:30000-30015", "-p tcp -m tcp --dport 30000:30015"},
	}
	for _, tt := range tests {
		f := &policy.Frontend{Key: policy.FrontendKey{Addr: netip.MustParseAddr(tt.addr), Protocol: source.TCP, Port: tt.port}}
		tt.tree.entries = []entry{{tt.tree.key(f), f}}
		n := node{0, 1, tt.digits, tt.depth}
		name := tt.tree.name(n)
		if name != tt.name {
			t.Errorf("name: got %s, want %s", name, tt.name)
		}
		if tt.depth == 1 {
			continue
		}
		host := "/32"
		if tt.tree == v6 {
			host = "/128"
		}
		if match := tt.tree.match(n, host); match != tt.match {
			t.Errorf("match: got %s, want %s", match, tt.match)
		}
	}
}

// No name, whatever is in it, adds a word or a line to the input of iptables-restore.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"web", "a b", "\"; -j ACCEPT", "a\nCOMMIT\n*raw", `\`, "\x00", "é\xff", strings.Repeat("x", 300), "-j", "'"} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, namespace, name, port string) {
		s := backendtest.Service{Name: name, Port: port, Protocol: source.TCP, Targets: backendtest.Targets(policy.IPv4, 1, 1)}
		cluster, _ := s.Pools()
		cluster.ServicePort.Namespace = namespace
		route := backendtest.Route(cluster, policy.Everyone, policy.Reject)
		key := policy.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 53}
		chains := render(t, backendtest.NewWorld(policy.IPv4), s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route}))
		checkChains(t, chains, nil)
		rule := regexp.MustCompile(`^-A SVCP-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 53 -m comment --comment "[-\w./:?]{1,200}" -j SVCP-[-A-Z0-9]+\n$`)
		lines := slices.Collect(strings.Lines(chains[Services]))
		if len(lines) != 4 || !rule.MatchString(lines[0]) || !rule.MatchString(lines[1]) {
			t.Errorf("rules: %q", lines)
		}
	})
}

func TestHostileInterfaceNamesAreQuoted(t *testing.T) {
	for name, ok := range map[string]bool{
		"eth0": true, "eth*": true, "*": true, "a.b-c_d@e:1": true,
		"": false, "eth0 -j ACCEPT": false, "a\n": false, `"`: false, "eth+": false, "e*h*": false, "sixteencharacter": false, "!": false,
	} {
		w := backendtest.NewWorld(policy.IPv4)
		w.Host.LocalInterfaces = []string{name}
		if err := NewRules(policy.IPv4).Reset(w.State); (err == nil) != ok {
			t.Errorf("interface %q: got %v", name, err)
		}
	}
}

// A step of a slow start rewrites the few chains that lead to its target, and no rule by which
// clients keep theirs.
func TestSlowStartStep(t *testing.T) {
	render := func(n int, weight uint16, affinity time.Duration) map[string]string {
		targets := backendtest.Targets(policy.IPv4, 0, n)
		for i := range targets {
			targets[i].Weight = 100
		}
		targets[n/2].Weight = weight
		s := backendtest.Service{Name: "web", Protocol: source.TCP, Affinity: affinity, Targets: targets}
		cluster, _ := s.Pools()
		chains := map[string]string{}
		NewRules(policy.IPv4).poolChains(cluster, func(_, name string, rules []byte) { chains[name] = string(rules) })
		return chains
	}
	for _, tt := range []struct {
		targets, most int // chains that change
		affinity      time.Duration
	}{{3, 1, 0}, {100, 2, 0}, {100, 2, time.Hour}, {1000, 3, 0}} {
		was := render(tt.targets, 10, tt.affinity)
		for weight := uint16(20); weight <= 100; weight += 10 {
			now := render(tt.targets, weight, tt.affinity)
			changed := 0
			for name, rules := range now {
				if rules != was[name] {
					changed++
				}
				if keeps(rules) != keeps(was[name]) {
					t.Errorf("weight %d: chain %s keeps clients otherwise:\n%s", weight, name, rules)
				}
			}
			if len(now) != len(was) || changed == 0 || changed > tt.most {
				t.Errorf("weight %d: %d of %d chains change, want %d of %d", weight, changed, len(now), tt.most, len(was))
			}
			was = now
		}
	}
}

// keeps returns the rules by which clients keep their target.
func keeps(rules string) (list string) {
	for line := range strings.Lines(rules) {
		if strings.Contains(line, "--update") {
			list += line
		}
	}
	return list
}
