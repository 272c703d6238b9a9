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

// A poolRenderer renders one pool as rules.
type poolRenderer struct {
	words    Dialect
	pool     *policy.Pool
	name     string
	proto    string
	affinity string // seconds of session affinity; empty: none
	emit     Emit
}

// poolChains emits the chains of a pool; none without targets.
func (fr *frame) poolChains(p *policy.Pool, emit Emit) {
	if len(p.Targets) == 0 {
		return
	}
	pr := poolRenderer{words: fr.words, pool: p, name: poolChain(p), proto: "-p " + p.Protocol.String(), emit: emit}
	c := &chain{name: pr.name}
	c.rule("-j CONNMARK --set-xmark", fr.bit()) // the connection is ours
	if p.Affinity > 0 {
		// The kernel counts whole seconds.
		pr.affinity = strconv.FormatInt(int64((p.Affinity+time.Second-1)/time.Second), 10)
		for _, t := range p.Targets {
			c.rule(pr.proto, "-m recent --update --seconds", pr.affinity, "--reap", pr.list(t), dnat(t))
		}
	}
	pr.choose(c, p.Targets, pr.name)
}

// choose completes c with rules that choose one of targets by weight, and emits it.
func (pr *poolRenderer) choose(c *chain, targets []policy.Target, path string) {
	left := policy.WeightOf(targets)
	if len(targets) <= fanOut {
		for _, t := range targets {
			c.rule(pr.proto, chance(uint64(t.Weight), left), pr.remember(t), dnat(t))
			left -= uint64(t.Weight)
		}
		pr.emit("nat", c.name, c.rules)
		return
	}
	groups := min(fanOut, (len(targets)+fanOut-1)/fanOut)
	for i := range groups {
		share := targets[i*len(targets)/groups : (i+1)*len(targets)/groups]
		sub := path + "/" + strconv.Itoa(i)
		name := hashed(Prefix+"PART-", sub)
		c.rule(chance(policy.WeightOf(share), left), "-g", name)
		left -= policy.WeightOf(share)
		pr.choose(&chain{name: name}, share, sub)
	}
	pr.emit("nat", c.name, c.rules)
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

// remember returns the match that records a client of t.
func (pr *poolRenderer) remember(t policy.Target) string {
	if pr.affinity == "" {
		return ""
	}
	return "-m recent --set " + pr.list(t)
}

// list returns the options that name the list of recent clients of a target.
func (pr *poolRenderer) list(t policy.Target) string {
	return "--name " + recentList(pr.name, t) + " --mask " + pr.words.mask + " --rsource"
}

// RecentList returns the name of the list of clients with affinity to a target of a pool.
func RecentList(p *policy.Pool, t policy.Target) string { return recentList(poolChain(p), t) }

func recentList(chain string, t policy.Target) string {
	return hashed(Prefix, chain+"/"+t.AddrPort.String())
}

func dnat(t policy.Target) string {
	port := ":" + strconv.Itoa(int(t.Port()))
	if t.Addr().Is4() {
		return "-j DNAT --to-destination " + addrText(t.Addr()) + port
	}
	return "-j DNAT --to-destination [" + addrText(t.Addr()) + "]" + port
}
