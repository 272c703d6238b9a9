package ruleset

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// String is for messages of tests.
func (k Kind) String() string {
	return [...]string{"goes on", "accepts", "returns", "jumps", "goes", "drops", "rejects", "translates", "does not track", "queues", "is ours", "rewrites", "is not followed"}[k]
}

func packet(src, dst string, port uint16) Packet {
	return Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), DstPort: port, Protocol: 6, In: "eth1", InIndex: 7}
}

func TestRulesOfIPTables(t *testing.T) {
	tests := []struct {
		rule string
		want string
	}{
		{"-j DROP", "yes drops"},
		{"-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with tcp-reset", "yes rejects"},
		{"-d 10.0.0.2/32 -j DROP", "no"},
		{"! -d 10.0.0.2/32 -j DROP", "yes drops"},
		{"-s 192.0.2.0/24 -j ACCEPT", "yes accepts"},
		{"-p udp -j DROP", "no"},
		{"-p tcp -m tcp --dport 1:79 -j DROP", "no"},
		{"-p tcp -m multiport --dports 22,80:90 -j DROP", "yes drops"},
		{"-p tcp -m tcp --sport 1024 -j DROP", "maybe drops"},
		{"-i eth1 -j DROP", "yes drops"},
		{"-i eth+ -j DROP", "yes drops"},
		{"! -i eth1 -j DROP", "no"},
		{"-o eth2 -j DROP", "maybe drops"},
		{"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "no"},
		{"-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP", "yes drops"},
		{"-m state --state NEW -j DROP", "yes drops"},
		{"-m mark --mark 0x1/0x1 -j DROP", "no"},
		{"-m mark ! --mark 0x1/0x1 -j DROP", "yes drops"},
		{"-m connmark --mark 0x1/0x1 -j DROP", "maybe drops"},
		{`-m comment --comment "a -j ACCEPT \" text" -j DROP`, "yes drops"},
		{"-m set --match-set blocked src -j DROP", "maybe drops"},
		{"-m limit --limit 5/min -j DROP", "maybe drops"},
		{"-m addrtype --dst-type LOCAL -j DROP", "no"},
		{"-p tcp -m tcp --tcp-flags SYN,RST SYN -j DROP", "maybe drops"},
		{"-d 10.0.0.1/32 -j DNAT --to-destination 10.9.9.9:80", "yes translates 10.9.9.9:80"},
		{"-p tcp -j REDIRECT --to-ports 8080", "yes translates this host"},
		{"-j CT --notrack", "yes does not track"},
		{"-j LOG --log-prefix \"x DROP \"", "yes jumps LOG"}, // a chain that there is not
		{"-j CONNMARK --restore-mark", "yes goes on"},
		{"-j DOCKER", "yes jumps DOCKER"},
		{"-g DOCKER", "yes goes DOCKER"},
		{"-m newer --option value -j DROP", "maybe drops"},
	}
	p := packet("192.0.2.9", "10.0.0.1", 80)
	for _, tt := range tests {
		m, v := parseRule(tt.rule).Eval(&p)
		got := []string{"no", "maybe", "yes"}[m]
		if m != No {
			got = strings.TrimSpace(fmt.Sprintf("%s %s %s%s", got, v.Kind, v.Chain, v.To))
		}
		if got != tt.want {
			t.Errorf("%s\n got: %s\nwant: %s", tt.rule, got, tt.want)
		}
	}
}

const saved = `# a comment
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:MAYBE - [0:0]
:SVCP-FORWARD - [0:0]
-A FORWARD -j DOCKER
-A FORWARD -m set --match-set some src -j MAYBE
-A MAYBE -d 10.0.0.6/32 -j DROP
-A FORWARD -j SVCP-FORWARD
-A FORWARD -m set --match-set good src -j ACCEPT
-A DOCKER -d 10.0.0.7/32 -j DROP
-A DOCKER -s 10.0.0.8/32 -j ACCEPT
-A DOCKER -d 10.0.0.9/32 -j RETURN
-A SVCP-FORWARD -m connmark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

// hits describes what walks find, one a line.
func hits(list []Hit) string {
	var b strings.Builder
	for _, h := range list {
		rule := h.Rule
		if rule == "" {
			rule = "policy"
		}
		fmt.Fprintf(&b, "%s %v: %s: %s sure=%v\n", h.Base.Origin, h.Path, rule, h.Verdict.Kind, h.Sure)
	}
	return b.String()
}

func newTestReader(skip string, left int) *saveReader {
	return &saveReader{origin: "iptables-nft", skip: skip, left: &left, tables: map[string]map[string][]Rule{}}
}

func TestWalk(t *testing.T) {
	r := newTestReader("SVCP-", 100)
	for line := range strings.SplitSeq(saved, "\n") {
		fatal.If(t, r.line([]byte(line)))
	}
	forward := r.bases[1]
	tests := []struct {
		name, src, dst string
		own            map[string]Verdict
		want           string
	}{
		{"a rule", "192.0.2.9", "10.0.0.7", nil, "iptables-nft filter FORWARD [FORWARD DOCKER]: -d 10.0.0.7/32 -j DROP: drops sure=true\n"},
		{"accepted before", "10.0.0.8", "10.0.0.1", nil, ""},
		{"a rule of a chain that may be met", "10.0.0.8", "10.0.0.6", nil, ""},
		{"the same, not accepted before", "192.0.2.9", "10.0.0.6", map[string]Verdict{"SVCP-FORWARD": {Kind: Accept}},
			"iptables-nft filter FORWARD [FORWARD MAYBE]: -d 10.0.0.6/32 -j DROP: drops sure=false\n"},
		{"policy, unless the set has it", "192.0.2.9", "10.0.0.1", nil, "iptables-nft filter FORWARD []: policy: drops sure=false\n"},
		{"accepted by ours", "192.0.2.9", "10.0.0.9", map[string]Verdict{"SVCP-FORWARD": {Kind: Accept}}, ""},
		{"dropped before ours", "192.0.2.9", "10.0.0.7", map[string]Verdict{"SVCP-FORWARD": {Kind: Accept}},
			"iptables-nft filter FORWARD [FORWARD DOCKER]: -d 10.0.0.7/32 -j DROP: drops sure=true\n"},
	}
	for _, tt := range tests {
		got, _ := forward.Walk(packet(tt.src, tt.dst, 80), tt.own)
		if hits(got) != tt.want {
			t.Errorf("%s\n got: %swant: %s", tt.name, hits(got), tt.want)
		}
	}
}

// Chains that jump to each other, which no kernel has, end all the same.
func TestWalkEnds(t *testing.T) {
	a, b := parseRule("-j B"), parseRule("-j A")
	base := &Base{Chain: "A", Chains: map[string][]Rule{"A": {a, a}, "B": {b, b}}, Drops: true}
	if got, _ := base.Walk(packet("192.0.2.9", "10.0.0.1", 80), nil); len(got) != 2 || got[0].Verdict.Kind != Unfollowed || got[0].Sure || got[1].Sure {
		t.Errorf("got %s", hits(got))
	}
}

// Rules that are not followed may do anything.
func TestWalkGivesUp(t *testing.T) {
	deep := map[string][]Rule{}
	for i := range 20 {
		deep[fmt.Sprint("c", i)] = []Rule{parseRule(fmt.Sprint("-j c", i+1))}
	}
	deep["c20"] = []Rule{parseRule("-j DROP")}
	long := []Rule{}
	for range maxSteps {
		long = append(long, parseRule("-p udp"))
	}
	for name, chains := range map[string]map[string][]Rule{"deep": deep, "long": {"c0": append(long, parseRule("-j DROP"))}} {
		got, _ := (&Base{Chain: "c0", Chains: chains}).Walk(packet("192.0.2.9", "10.0.0.1", 80), nil)
		if len(got) != 1 || got[0].Verdict.Kind != Unfollowed || got[0].Sure {
			t.Errorf("%s: %d hits, %+v", name, len(got), got)
		}
	}
}

// A drop that is sure is told of, however many may come before it.
func TestSureDropIsReportedDespiteManyHits(t *testing.T) {
	var list []Rule
	for range 2 * maxHits {
		list = append(list, parseRule("-m set --match-set x src -j REJECT"))
	}
	b := &Base{Chain: "c", Chains: map[string][]Rule{"c": {parseRule("-j d")}, "d": list}}
	w := walk{base: b, packet: packet("192.0.2.9", "10.0.0.1", 80)}
	w.chain("c", nil, true)
	if w.hit(nil, "the last", Verdict{Kind: Drop}, true); len(w.hits) != maxHits || w.hits[maxHits-1].Rule != "the last" {
		t.Errorf("%d hits, the last %+v", len(w.hits), w.hits[len(w.hits)-1])
	}
}

// Of a chain of which not all rules were read no hit is sure.
func TestPartialChainIsNeverSure(t *testing.T) {
	b := &Base{Chain: "c", Partial: true, Drops: true, Chains: map[string][]Rule{}}
	if got, _ := b.Walk(packet("192.0.2.9", "10.0.0.1", 80), nil); len(got) != 1 || got[0].Sure {
		t.Errorf("got %s", hits(got))
	}
}

func TestSortByHookAndPriority(t *testing.T) {
	rs := Ruleset{Bases: []*Base{{Hook: "forward", Priority: 5}, {Hook: "postrouting", Priority: -5}, {Hook: "forward", Priority: -5}, {Hook: "prerouting"}}}
	rs.Sort()
	var got strings.Builder
	for _, b := range rs.Bases {
		fmt.Fprint(&got, b.Hook, b.Priority, " ")
	}
	if want := "prerouting0 forward-5 forward5 postrouting-5 "; got.String() != want {
		t.Errorf("got %s, want %s", got.String(), want)
	}
}

func TestBudgetLimitsRules(t *testing.T) {
	r := newTestReader("", 2)
	for _, line := range []string{"*filter", ":FORWARD ACCEPT [0:0]", "-A FORWARD -j DROP", "-A FORWARD -j DROP", "-A FORWARD -j DROP"} {
		fatal.If(t, r.line([]byte(line)))
	}
	if n := len(r.tables["filter"]["FORWARD"]); n != 2 || *r.left >= 0 {
		t.Errorf("%d rules were read, %d left of the budget", n, *r.left)
	}
}

// Whatever iptables-save prints, it is read.
func FuzzParseRule(f *testing.F) {
	f.Add(`-p tcp -m tcp ! --dport 80 -m comment --comment "x\"" -j DNAT --to-destination 10.0.0.1:80`)
	f.Add(`! -`)
	f.Fuzz(func(t *testing.T, line string) {
		p := packet("192.0.2.9", "10.0.0.1", 80)
		r := parseRule(line)
		r.Eval(&p)
		if len(r.String()) > maxText+3 {
			t.Errorf("a text of %d bytes", len(r.String()))
		}
	})
}
