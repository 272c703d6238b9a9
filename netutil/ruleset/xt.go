package ruleset

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// targets are the targets of iptables that do more than continue. Any other name may be that of a chain.
var targets = map[string]Verdict{
	"ACCEPT": {Kind: Accept}, "DROP": {Kind: Drop}, "REJECT": {Kind: Reject}, "RETURN": {Kind: Return},
	"DNAT": translated, "REDIRECT": translated, "TPROXY": translated, "NETMAP": translated,
	"NOTRACK": {Kind: NoTrack}, "NFQUEUE": {Kind: Queue}, "QUEUE": {Kind: Queue}, "MARK": {Marks: true},
}

var translated = Verdict{Kind: Translate, To: "this host"}

// An xtRule is a rule of iptables.
type xtRule struct {
	text       string
	conditions []condition
	verdict    Verdict
}

// A condition is an option of iptables that a packet must match.
type condition struct {
	negated             bool
	module, name, value string // module: of the last -m before it
}

// Eval implements Rule.
func (r *xtRule) Eval(p *Packet) (Match, Verdict) {
	all := Yes
	for _, c := range r.conditions {
		m := c.match(p)
		if c.negated {
			m = m.not()
		}
		if all = min(all, m); all == No {
			return No, Verdict{}
		}
	}
	return all, r.verdict
}

func (r *xtRule) String() string { return clip(quoted(r.text)) }

// xtWord is a word of a rule. Quoted ones may hold spaces.
var xtWord = regexp.MustCompile(`"(?:\\.|[^"\\])*"|[^ \t]+`)

// parseRule parses a rule as iptables-save prints it, without "-A CHAIN".
func parseRule(line string) *xtRule {
	r := &xtRule{text: line}
	var c condition
	words := xtWord.FindAllString(line, -1)
	for i := 0; i < len(words); i++ {
		switch word := words[i]; {
		case word == "!":
			c.negated = true
		case word == "--comment":
			i++
		case !strings.HasPrefix(word, "-"): // a value that was read with its option
		case word == "-j" || word == "-g":
			r.target(word, words[i+1:])
			return r
		default:
			if c.name, c.value = word, ""; i+1 < len(words) {
				c.value = words[i+1]
			}
			if word == "-m" {
				c.module = c.value
			}
			r.conditions = append(r.conditions, c)
			c.negated = false
		}
	}
	return r
}

// target reads what ends the rule: a target with its options, or a chain.
func (r *xtRule) target(flag string, words []string) {
	if len(words) == 0 {
		return
	}
	v, isTarget := targets[words[0]]
	switch {
	case flag == "-g":
		v = Verdict{Kind: GoTo, Chain: words[0]}
	case words[0] == "CT" && slices.Contains(words, "--notrack"):
		v = Verdict{Kind: NoTrack}
	case words[0] == "CONNMARK" && slices.Contains(words, "--restore-mark"):
		v = Verdict{Marks: true}
	case !isTarget:
		v = Verdict{Kind: Jump, Chain: words[0]}
	}
	if i := slices.Index(words, "--to-destination"); i > 0 && i+1 < len(words) {
		v.To = words[i+1]
	}
	r.verdict = v
}

// harmlessModules need no option to match; others match by their options only.
var harmlessModules = []string{"tcp", "udp", "sctp", "multiport", "conntrack", "state", "mark", "comment", "addrtype"}

// match reports whether a packet has what the condition asks for. What is not understood may match.
func (c condition) match(p *Packet) Match {
	switch c.name {
	case "-m":
		return max(Maybe, matchIf(slices.Contains(harmlessModules, c.value)))
	case "-s":
		return inNet(c.value, p.Src)
	case "-d":
		return inNet(c.value, p.Dst)
	case "-p":
		return hasProtocol(c.value, p.Protocol)
	case "-i":
		return onInterface(c.value, p.In, p.NoIn)
	case "-o":
		return onInterface(c.value, p.Out, false)
	case "--dport", "--dports":
		return hasPort(c.value, p.DstPort)
	case "--sport", "--sports":
		return hasPort(c.value, p.SrcPort)
	case "--ctstate", "--state": // of the first packet of a connection
		states := strings.Split(c.value, ",")
		return matchIf(slices.Contains(states, "NEW") || p.DNAT && slices.Contains(states, "DNAT"))
	case "--mark":
		if c.module == "mark" && !p.AnyMark {
			return hasMark(c.value, p.Mark)
		}
	case "--dst-type":
		return ofType(c.value, p.DstLocal)
	case "--src-type":
		return ofType(c.value, p.SrcLocal)
	}
	return Maybe
}

// matchUnless is matchIf, unless it is not understood what a condition asks for.
func matchUnless(err error, ok bool) Match {
	if err != nil {
		return Maybe
	}
	return matchIf(ok)
}

func inNet(v string, a netip.Addr) Match {
	if !strings.Contains(v, "/") {
		v = fmt.Sprintf("%s/%d", v, a.BitLen())
	}
	prefix, err := netip.ParsePrefix(v)
	return matchUnless(err, prefix.Contains(a))
}

// protocols are what iptables-save prints by name.
var protocols = map[string]string{"tcp": "6", "udp": "17", "sctp": "132", "icmp": "1", "ipv6-icmp": "58", "udplite": "136", "esp": "50", "ah": "51", "gre": "47"}

func hasProtocol(v string, protocol uint8) Match {
	if v == "all" {
		return Yes
	}
	n, err := strconv.ParseUint(cmp.Or(protocols[v], v), 10, 8)
	return matchUnless(err, uint64(protocol) == n)
}

func onInterface(v, name string, none bool) Match {
	stem, isPrefix := strings.CutSuffix(v, "+")
	switch {
	case none:
		return matchIf(v == "+")
	case name == "":
		return Maybe
	}
	return matchIf(name == v || isPrefix && strings.HasPrefix(name, stem))
}

// hasPort matches a list of ports and ranges, as in 80,8000:8100.
func hasPort(v string, port uint16) Match {
	in := No
	for part := range strings.SplitSeq(v, ",") {
		lo, hi, _ := strings.Cut(part, ":")
		a, errA := strconv.ParseUint(lo, 10, 16)
		b, errB := strconv.ParseUint(cmp.Or(hi, lo), 10, 16)
		if errA != nil || errB != nil || port == 0 {
			return Maybe
		}
		in = max(in, matchIf(a <= uint64(port) && uint64(port) <= b))
	}
	return in
}

func hasMark(v string, mark uint32) Match {
	want, mask, _ := strings.Cut(v, "/")
	w, errW := strconv.ParseUint(want, 0, 32)
	m, errM := strconv.ParseUint(cmp.Or(mask, "0xffffffff"), 0, 32)
	return matchUnless(cmp.Or(errW, errM), uint64(mark)&m == w)
}

func ofType(v string, local bool) Match {
	if v != "LOCAL" && v != "UNICAST" {
		return Maybe
	}
	return matchIf(local == (v == "LOCAL"))
}

// builtIn returns a chain as iptables has it in a table; nil: it has none of that name.
func builtIn(table, chain string) *Base {
	priority, known := map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}[table]
	hook := slices.IndexFunc(hooks, func(h string) bool { return strings.ToUpper(h) == chain })
	if !known || hook < 0 {
		return nil
	}
	b := &Base{Chain: chain, Type: "filter", Hook: hooks[hook], Priority: priority}
	if table == "nat" {
		b.Type = "nat"
		if chain == "INPUT" || chain == "POSTROUTING" {
			b.Priority = 100
		}
	}
	return b
}

// A saveReader takes the lines of iptables-save.
type saveReader struct {
	origin string // the tool
	skip   string // beginning of the names of chains that are not looked into
	left   *int   // how many more rules are read; negative: there were more
	table  string
	bases  []*Base
	tables map[string]map[string][]Rule // chains of all tables
}

func (r *saveReader) line(b []byte) error {
	switch line := string(b); {
	case strings.HasPrefix(line, "*"):
		r.table = line[1:]
		r.tables[r.table] = map[string][]Rule{}
	case strings.HasPrefix(line, ":"):
		words := strings.Fields(line[1:])
		if len(words) < 2 {
			return nil
		}
		if b := builtIn(r.table, words[0]); b != nil {
			b.Origin, b.Drops, b.Chains = r.origin+" "+r.table+" "+b.Chain, words[1] == "DROP", r.tables[r.table]
			r.bases = append(r.bases, b)
		}
	case strings.HasPrefix(line, "-A "):
		chain, rule, _ := strings.Cut(line[3:], " ")
		if r.skip != "" && strings.HasPrefix(chain, r.skip) {
			return nil
		}
		if *r.left--; *r.left >= 0 {
			r.tables[r.table][chain] = append(r.tables[r.table][chain], parseRule(rule))
		}
	}
	return nil
}
