package ruleset

import (
	"fmt"
	"slices"
	"strings"
)

// targets are the targets of iptables that do more than go on.
var targets = map[string]Kind{
	"ACCEPT": Accept, "DROP": Drop, "REJECT": Reject, "RETURN": Return, "DNAT": Translate, "REDIRECT": Translate,
	"TPROXY": Translate, "NETMAP": Translate, "NOTRACK": NoTrack, "NFQUEUE": Queue, "QUEUE": Queue, "MARK": SetMark,
}

// passing are those that let a packet go on.
var passing = []string{
	"LOG", "NFLOG", "ULOG", "CONNMARK", "CONNSECMARK", "SECMARK", "SET", "TCPMSS", "TOS", "DSCP", "TTL", "HL", "CLASSIFY",
	"CHECKSUM", "TRACE", "AUDIT", "CT", "MASQUERADE", "SNAT", "IDLETIMER", "RATEEST", "TEE", "ECN", "SYNPROXY", "HMARK",
}

// An xtRule is a rule of iptables.
type xtRule struct {
	text    string
	matches []func(*Packet) Match
	verdict Verdict
}

// Eval implements Rule.
func (r *xtRule) Eval(p *Packet) (Match, Verdict) {
	m := Yes
	for _, f := range r.matches {
		if m = m.and(f(p)); m == No {
			return No, Verdict{}
		}
	}
	return m, r.verdict
}

func (r *xtRule) String() string { return clip(quoted(r.text)) }

// parseRule parses a rule as iptables-save prints it, without "-A CHAIN".
func parseRule(line string) *xtRule {
	r := &xtRule{text: line}
	p := &ruleParser{words: split(line), rule: r}
	for !p.done() {
		p.option()
	}
	return r
}

// split divides a line into words. Quoted ones may hold spaces.
func split(line string) (words []string) {
	for line != "" {
		switch line[0] {
		case ' ', '\t':
			line = line[1:]
			continue
		case '"':
			word, rest := unquote(line[1:])
			words, line = append(words, word), rest
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		words, line = append(words, word), rest
	}
	return words
}

func unquote(s string) (word, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == '"':
			return b.String(), s[i+1:]
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), ""
}

type ruleParser struct {
	words  []string
	rule   *xtRule
	module string // of the last -m
}

func (p *ruleParser) done() bool { return len(p.words) == 0 }

func (p *ruleParser) next() string {
	if p.done() {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

func (p *ruleParser) match(negated bool, f func(*Packet) Match) {
	if negated {
		positive := f
		f = func(p *Packet) Match { return positive(p).not() }
	}
	p.rule.matches = append(p.rule.matches, f)
}

// notUnderstood is a match that may match.
func notUnderstood(*Packet) Match { return Maybe }

// option parses one option with its values.
func (p *ruleParser) option() {
	word, negated := p.next(), false
	if word == "!" {
		word, negated = p.next(), true
	}
	switch word {
	case "-m":
		p.useModule(p.next())
	case "-j", "-g":
		p.target(word, p.next())
	default:
		parse := options[word]
		if parse == nil || word == "--mark" && p.module != "mark" {
			p.match(false, notUnderstood)
			p.skip()
			return
		}
		p.match(negated, parse(p.next()))
	}
}

// harmlessModules need no option to match; others match by their options only.
var harmlessModules = []string{"tcp", "udp", "sctp", "multiport", "conntrack", "state", "mark", "comment", "addrtype"}

func (p *ruleParser) useModule(name string) {
	if p.module = name; !slices.Contains(harmlessModules, name) {
		p.match(false, notUnderstood)
	}
}

// skip passes over the values of an option that is not understood.
func (p *ruleParser) skip() {
	for !p.done() && !strings.HasPrefix(p.words[0], "-") && p.words[0] != "!" {
		p.next()
	}
}

func (p *ruleParser) target(flag, name string) {
	kind, isTarget := targets[name]
	v := Verdict{Kind: kind}
	switch {
	case isTarget:
	case slices.Contains(passing, name):
	case flag == "-g":
		v = Verdict{Kind: GoTo, Chain: name}
	default:
		v = Verdict{Kind: Jump, Chain: name}
	}
	p.targetOptions(name, &v)
	p.rule.verdict = v
}

// targetOptions reads what of a target's options matters: they end the rule.
func (p *ruleParser) targetOptions(name string, v *Verdict) {
	for !p.done() {
		switch word := p.next(); {
		case word == "--to-destination":
			v.To = p.next()
		case word == "--notrack" && name == "CT":
			v.Kind = NoTrack
		}
	}
	if v.Kind == Translate && v.To == "" {
		v.To = "this host"
	}
}

// xtHooks are the built-in chains of each table, and the priority at which they run.
var xtHooks = map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

// isBuiltIn reports whether a chain with a hook is where iptables has the one of that name, in a table of that name.
func isBuiltIn(table string, b *Base) bool {
	_, known := xtHooks[table]
	return known && builtIn[b.Chain] == b.Hook && b.Priority == xtPriority(table, b.Chain)
}

// xtPriority returns the priority of a built-in chain.
func xtPriority(table, chain string) int {
	if table == "nat" && (chain == "INPUT" || chain == "POSTROUTING") {
		return 100
	}
	return xtHooks[table]
}

var builtIn = map[string]string{"PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward", "OUTPUT": "output", "POSTROUTING": "postrouting"}

// A saveReader takes the lines of iptables-save.
type saveReader struct {
	origin string // the tool
	skip   string // beginning of the names of chains that are not looked into
	limit  *budget
	table  string
	chains map[string][]Rule // of the table
	bases  []*Base
	tables map[string]map[string][]Rule // chains of all tables
}

func newSaveReader(origin, skip string, limit *budget) *saveReader {
	return &saveReader{origin: origin, skip: skip, limit: limit, tables: map[string]map[string][]Rule{}}
}

func (r *saveReader) line(b []byte) error {
	switch line := string(b); {
	case strings.HasPrefix(line, "*"):
		r.table, r.chains = line[1:], map[string][]Rule{}
		r.tables[r.table] = r.chains
	case strings.HasPrefix(line, ":"):
		r.declare(line[1:])
	case strings.HasPrefix(line, "-A "):
		chain, rule, _ := strings.Cut(line[3:], " ")
		if (r.skip == "" || !strings.HasPrefix(chain, r.skip)) && r.limit.take() {
			r.chains[chain] = append(r.chains[chain], parseRule(rule))
		}
	}
	return nil
}

func (r *saveReader) declare(line string) {
	words := strings.Fields(line)
	if _, known := xtHooks[r.table]; len(words) < 2 || !known || builtIn[words[0]] == "" {
		return
	}
	typ := "filter"
	if r.table == "nat" {
		typ = "nat"
	}
	r.bases = append(r.bases, &Base{
		Origin: fmt.Sprintf("%s %s %s", r.origin, r.table, words[0]), Chain: words[0], Type: typ,
		Hook: builtIn[words[0]], Priority: xtPriority(r.table, words[0]), Drops: words[1] == "DROP", Chains: r.chains,
	})
}
