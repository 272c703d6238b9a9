package layout

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ProbePrefix begins the names of chains that exist for a moment to probe features.
const ProbePrefix = Prefix + "PROBE"

// Optional are the matches that only some services need: those with several
// endpoints, session affinity, or SCTP. Every service needs all other features.
var Optional = []string{"statistic", "recent", "sctp"}

// Features returns rules that together need every feature, and one rule for each.
func (r *Rules) Features(set string) (combined, single []xtables.Feature) {
	target := "192.0.2.1:1"
	if r.words.fam == policy.IPv6 {
		target = "[2001:db8::1]:1"
	}
	rule := feature
	matches := []xtables.Feature{
		rule("nat", "tcp", "-p tcp -m tcp --dport 1"),
		rule("nat", "comment", "-m comment --comment probe"),
		rule("nat", "conntrack", "-m conntrack --ctstate DNAT"),
		rule("nat", "addrtype", "-m addrtype --src-type LOCAL"),
		rule("nat", "mark", "-m mark --mark 0x1/0x1"),
		rule("nat", "connmark", "-m connmark --mark 0x1/0x1"),
		rule("nat", "set", "-m set --match-set "+set+" dst"),
		rule("nat", "statistic", "-m statistic --mode random --probability 0.5"),
		rule("nat", "recent", "-m recent --set --name "+ProbePrefix+" --mask "+r.words.mask+" --rsource"),
	}
	all := ""
	for _, m := range matches {
		all += strings.Join(m.Words, " ") + " "
	}
	dnat := "-j DNAT --to-destination " + target
	rest := []xtables.Feature{
		rule("nat", "sctp", "-p sctp -m sctp --dport 1 -j MARK --set-xmark 0x1/0x1"),
		rule("nat", "udp", "-p udp -m udp --dport 1 "+masquerade),
		rule("filter", "REJECT", "-p tcp -j REJECT --reject-with tcp-reset"),
		rule("nat", "CONNMARK", "-j CONNMARK --set-xmark 0x1/0x1"),
	}
	combined = slices.Concat([]xtables.Feature{rule("nat", "all", all+dnat)}, rest, r.layout.needs)
	single = slices.Concat(matches, []xtables.Feature{
		rule("nat", "DNAT", "-p tcp "+dnat),
		rule("nat", "MARK", "-j MARK --set-xmark 0x1/0x1"),
		rule("nat", "MASQUERADE", masquerade),
		rule("nat", "sctp", "-p sctp -m sctp --dport 1"),
		rule("nat", "udp", "-p udp -m udp --dport 1"),
		rest[2], rest[3],
	}, r.layout.needs)
	return combined, single
}

// missingMatch returns the first missing match that the rules of a service need;
// empty if they need none.
func missingMatch(fr *frame, res *policy.Resolved, missing xtables.Missing) string {
	if len(missing) == 0 {
		return ""
	}
	text := ""
	fr.serviceChains(res, func(_, _ string, rules []byte) { text += string(rules) })
	c := &chain{}
	for _, f := range res.Frontends {
		if fr.hasRules(f) {
			fr.frontendRules(c, f)
		}
	}
	text += string(c.rules)
	for _, name := range Optional {
		if _, lacks := missing[name]; lacks && strings.Contains(text, "-m "+name+" ") {
			return name
		}
	}
	return ""
}

// serviceChain matches the name of a chain that belongs to one service.
var serviceChain = regexp.MustCompile(Prefix + `(SVC|SVL|PART|EXT)-[A-Z2-7]{16}`)

// Blame adds the service to an error that names one of its chains.
func (r *Rules) Blame(err error) error {
	name := serviceChain.FindString(err.Error())
	if name == "" {
		return err
	}
	var owner *source.Key
	for key, res := range r.resolved {
		r.serviceChains(res, func(_, chain string, _ []byte) {
			if chain == name {
				owner = &key
			}
		})
	}
	if owner == nil {
		return err
	}
	return fmt.Errorf("service %s: %w", owner, err)
}

// refusing returns res with what rules would balance refused.
func refusing(fr *frame, res *policy.Resolved) *policy.Resolved {
	out := *res
	out.Frontends = slices.Clone(res.Frontends)
	for i, f := range res.Frontends {
		if !fr.hasRules(f) {
			continue
		}
		g := *f
		for _, l := range []*policy.Route{&g.Outside, &g.FromLocal} {
			if l.Action == policy.Balance {
				*l = policy.Route{Action: policy.Reject, Pool: withoutTargets(l.Pool)}
			}
		}
		out.Frontends[i] = &g
	}
	if !slices.ContainsFunc(out.Frontends, (*policy.Frontend).Balances) {
		out.Pools, out.HairpinPools = nil, nil
	}
	return &out
}

func withoutTargets(p *policy.Pool) *policy.Pool {
	out := *p
	out.Targets = nil
	return &out
}
