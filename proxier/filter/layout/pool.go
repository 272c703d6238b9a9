package layout

import (
	"math"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
)

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
	return hashed(Prefix, chain+"/"+t.AddrPort.String())
}

func dnat(t policy.Target) string {
	at := addrText(t.Addr())
	if t.Addr().Is6() {
		at = "[" + at + "]"
	}
	return "-j DNAT --to-destination " + at + ":" + strconv.Itoa(int(t.Port()))
}
