package layout

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// frontendRules appends the rules for packets to f. What IPVS balances, and what not everybody
// may use, must not reach the rules of node ports, whatever its source; of what is balanced for
// nobody, the sources that may not use it.
func (fr *frame) frontendRules(c *chain, f *policy.Frontend) {
	if fr.balances(f) {
		fr.words.balance(c, f)
	}
	switch {
	case fr.takesNodePort(f):
		c.rule(fr.words.matchDestination(f), comment(f.ServicePort.String()), "-j ACCEPT")
	case fr.limitsNodePort(f):
		c.rule(fr.words.matchDestination(f), fr.words.noMatch(rangesSet, "dst,dst,src"), comment(f.ServicePort.String()), "-j ACCEPT")
	}
}

// balance appends the rules that jump to pools.
func (d Dialect) balance(c *chain, f *policy.Frontend) {
	match := strings.TrimSpace(d.matchDestination(f)+" "+d.matchSources(f)) + " " + comment(f.ServicePort.String())
	if f.Split() {
		c.rule(match, "-j", splitChain(f))
		return
	}
	switch f.Outside.Masquerade {
	case policy.Everyone:
		c.rule(match, "-j", MarkMasq)
	case policy.NonLocal:
		c.rule(match, "-j", MarkNonLocal)
	case policy.HostProcesses:
		c.rule(d.matchDestination(f), d.matchSources(f), hostProcess, comment(f.ServicePort.String()), "-j", MarkMasq)
	}
	c.rule(match, "-j", poolChain(f.Outside.Pool))
}

func (d Dialect) matchDestination(f *policy.Frontend) string {
	words := ""
	if f.Key.Kind != policy.NodePort {
		words = "-d " + addrText(f.Key.Addr) + d.host + " "
	}
	proto := f.Key.Protocol.String()
	words += "-p " + proto + " -m " + proto + " --dport " + strconv.Itoa(int(f.Key.Port))
	if f.Placed {
		words += " " + d.match(placedSet, "dst,dst")
	}
	return words
}

// matchSources returns the match for the sources that may use f; empty if all may.
func (d Dialect) matchSources(f *policy.Frontend) string {
	if !f.Restricted {
		return ""
	}
	return d.match(rangesSet, "dst,dst,src")
}

// splitChain returns the name of the chain that separates local sources from others.
// Frontends of a service port share it as long as they route alike.
func splitChain(f *policy.Frontend) string {
	key := f.ServicePort.String() + "/" + f.Key.Protocol.String()
	for _, l := range []policy.Route{f.FromLocal, f.Outside} {
		key += "/" + l.Action.String() + "/" + l.Masquerade.String() + "/" + l.Pool.Scope.String()
	}
	return hashed(Prefix+"EXT-", key)
}

// splitRules emits the chain that separates local sources from others.
func (fr *frame) splitRules(f *policy.Frontend, emit Emit) {
	c := &chain{name: splitChain(f)}
	switch f.FromLocal.Masquerade {
	case policy.Everyone, policy.HostProcesses:
		c.markRoute(f.FromLocal, hostProcess, MarkMasq)
	case policy.NonLocal:
		c.markRoute(f.FromLocal, hostProcess, MarkNonLocal)
	}
	c.goTo(f.FromLocal, hostProcess)
	for _, source := range fr.localSources() {
		if f.FromLocal.Masquerade == policy.Everyone {
			c.markRoute(f.FromLocal, source, MarkMasq)
		}
		c.goTo(f.FromLocal, source)
	}
	answered := fr.byIPVS && f.Outside.Pool.Forward.Answers() // IPVS sends packets as they are, to endpoints that answer their source
	if m := f.Outside.Masquerade; (m == policy.Everyone || m == policy.NonLocal) && !answered {
		c.markRoute(f.Outside, "", MarkMasq) // local sources are gone by now
	}
	if fr.byIPVS {
		c.rule("-j RETURN")
	} else {
		c.goTo(f.Outside, "")
	}
	emit("nat", c.name, c.rules)
}

func (c *chain) markRoute(l policy.Route, source, mark string) {
	if l.Action == policy.Balance {
		c.rule(source, "-j", mark)
	}
}

// goTo sends packets of a source to their pool. If the route does not balance they
// return unchanged, and the filter table decides.
func (c *chain) goTo(l policy.Route, source string) {
	if l.Action == policy.Balance {
		c.rule(source, "-g", poolChain(l.Pool))
	} else {
		c.rule(source, "-j RETURN")
	}
}

// serviceChains emits the chains that belong to one service: its pools, and those
// that separate local sources from others.
func (fr *frame) serviceChains(res *policy.Resolved, emit Emit) {
	for _, p := range res.Pools { // those that rules choose among the targets of
		forLocal := func(f *policy.Frontend) bool { return fr.balances(f) && f.FromLocal.Pool == p }
		if !fr.byIPVS || slices.ContainsFunc(res.Frontends, forLocal) {
			fr.poolChains(p, emit)
		}
	}
	done := map[string]bool{}
	for _, f := range res.Frontends {
		if !f.Split() || !fr.balances(f) {
			continue
		}
		if name := splitChain(f); !done[name] {
			done[name] = true
			fr.splitRules(f, emit)
		}
	}
}

// fanOut is the most rules in a chain that chooses a target. With more targets the
// chain chooses among chains, each of which has a share of them: 65,536 take four
// levels, see maxDepth.
const fanOut = 16

// poolChain returns the name of a pool's chain.
func poolChain(p *policy.Pool) string {
	prefix := Prefix + "SVC-"
	if p.Scope == policy.NodeScope {
		prefix = Prefix + "SVL-"
	}
	return hashed(prefix, p.ServicePort.String()+"/"+p.Protocol.String())
}

// poolChains emits the chains of a pool; none without targets.
func (fr *frame) poolChains(p *policy.Pool, emit Emit) {
	if len(p.Targets) == 0 {
		return
	}
	name, proto := poolChain(p), "-p "+p.Protocol.String()
	c := &chain{name: name}
	c.rule("-j CONNMARK --set-xmark", fr.bit()) // the connection is ours
	remember := func(policy.Target) string { return "" }
	if p.Affinity > 0 {
		list := func(t policy.Target) string {
			return "--name " + recentList(name, t) + " --mask " + fr.words.mask + " --rsource"
		}
		// The kernel counts whole seconds.
		seconds := strconv.FormatInt(int64((p.Affinity+time.Second-1)/time.Second), 10)
		for _, t := range p.Targets {
			c.rule(proto, "-m recent --update --seconds", seconds, "--reap", list(t), dnat(t))
		}
		remember = func(t policy.Target) string { return "-m recent --set " + list(t) }
	}
	// choose completes a chain with rules that choose one of targets by weight, and emits it.
	var choose func(c *chain, targets []policy.Target, path string)
	choose = func(c *chain, targets []policy.Target, path string) {
		left := policy.WeightOf(targets)
		if len(targets) <= fanOut {
			for _, t := range targets {
				c.rule(proto, chance(uint64(t.Weight), left), remember(t), dnat(t))
				left -= uint64(t.Weight)
			}
			emit("nat", c.name, c.rules)
			return
		}
		groups := min(fanOut, (len(targets)+fanOut-1)/fanOut)
		for i := range groups {
			share := targets[i*len(targets)/groups : (i+1)*len(targets)/groups]
			sub := path + "/" + strconv.Itoa(i)
			part := &chain{name: hashed(Prefix+"PART-", sub)}
			c.rule(chance(policy.WeightOf(share), left), "-g", part.name)
			left -= policy.WeightOf(share)
			choose(part, share, sub)
		}
		emit("nat", c.name, c.rules)
	}
	choose(c, p.Targets, name)
}

// chance returns a match with probability part/total; empty if that is 1.
// The kernel counts probabilities in 1/2^31, <linux/netfilter/xt_statistic.h>.
func chance(part, total uint64) string {
	if part == total {
		return ""
	}
	const unit = 1 << 31
	p := math.Round(float64(part)/float64(total)*unit) / unit
	return "-m statistic --mode random --probability " + strconv.FormatFloat(p, 'f', 11, 64)
}

// RecentList returns the name of the list of clients with affinity to a target of a pool.
func RecentList(p *policy.Pool, t policy.Target) string { return recentList(poolChain(p), t) }

func recentList(chain string, t policy.Target) string {
	return hashed(Prefix, chain+"/"+t.String())
}

func dnat(t policy.Target) string {
	at := addrText(t.Addr())
	if t.Addr().Is6() {
		at = "[" + at + "]"
	}
	return "-j DNAT --to-destination " + at + ":" + strconv.Itoa(int(t.Port()))
}
