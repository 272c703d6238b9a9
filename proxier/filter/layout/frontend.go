package layout

import (
	"strconv"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// hostProcess matches packets from this host itself.
const hostProcess = "-m addrtype --src-type LOCAL"

// frontendRules appends the rules for packets to f. What IPVS balances, and what not everybody
// may use, must not reach the rules of node ports, whatever its source; of what is balanced for
// nobody, the sources that may not use it.
func (r *Rules) frontendRules(c *chain, f *policy.Frontend) {
	if r.layout.hasRules(f) {
		r.balance(c, f)
	}
	switch {
	case r.takesNodePort(f):
		c.rule(r.matchDestination(f), comment(f.ServicePort.String()), "-j ACCEPT")
	case r.limitsNodePort(f):
		c.rule(r.matchDestination(f), r.words.noMatch(rangesSet, "dst,dst,src"), comment(f.ServicePort.String()), "-j ACCEPT")
	}
}

// balance appends the rules that jump to pools.
func (r *Rules) balance(c *chain, f *policy.Frontend) {
	match := r.matchFrontend(f)
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
		c.rule(r.matchDestination(f), r.matchSources(f), hostProcess, comment(f.ServicePort.String()), "-j", MarkMasq)
	}
	c.rule(match, "-j", poolChain(f.Outside.Pool))
}

// matchFrontend returns the match for packets to f.
func (r *Rules) matchFrontend(f *policy.Frontend) string {
	words := r.matchDestination(f)
	if allowed := r.matchSources(f); allowed != "" {
		words += " " + allowed
	}
	return words + " " + comment(f.ServicePort.String())
}

func (r *Rules) matchDestination(f *policy.Frontend) string {
	words := ""
	if f.Key.Kind != policy.NodePort {
		words = "-d " + addrText(f.Key.Addr) + r.words.host + " "
	}
	proto := f.Key.Protocol.String()
	words += "-p " + proto + " -m " + proto + " --dport " + strconv.Itoa(int(f.Key.Port))
	if f.Placed {
		words += " " + r.words.match(placedSet, "dst,dst")
	}
	return words
}

// matchSources returns the match for the sources that may use f; empty if all may.
func (r *Rules) matchSources(f *policy.Frontend) string {
	if !f.Restricted {
		return ""
	}
	return r.words.match(rangesSet, "dst,dst,src")
}

// splitChain returns the name of the chain that separates local sources from others.
// Frontends of a service port share it as long as they route alike.
func splitChain(f *policy.Frontend) string {
	key := f.ServicePort.String() + "/" + f.Key.Protocol.String()
	for _, l := range []policy.Route{f.Local, f.Outside} {
		key += "/" + l.Action.String() + "/" + l.Masquerade.String() + "/" + l.Pool.Scope.String()
	}
	return hashed(Prefix+"EXT-", key)
}

// splitRules emits the chain that separates local sources from others.
func (r *Rules) splitRules(f *policy.Frontend, emit Emit) {
	c := &chain{name: splitChain(f)}
	switch f.Local.Masquerade {
	case policy.Everyone, policy.HostProcesses:
		r.markRoute(c, f.Local, hostProcess, MarkMasq)
	case policy.NonLocal:
		r.markRoute(c, f.Local, hostProcess, MarkNonLocal)
	}
	r.goTo(c, f.Local, hostProcess)
	for _, source := range r.localSources() {
		if f.Local.Masquerade == policy.Everyone {
			r.markRoute(c, f.Local, source, MarkMasq)
		}
		r.goTo(c, f.Local, source)
	}
	if m := f.Outside.Masquerade; (m == policy.Everyone || m == policy.NonLocal) && !r.answered(f) {
		r.markRoute(c, f.Outside, "", MarkMasq) // local sources are gone by now
	}
	r.layout.routeOutside(r, c, f.Outside)
	emit("nat", c.name, c.rules)
}

func (r *Rules) markRoute(c *chain, l policy.Route, source, mark string) {
	if l.Action == policy.Balance {
		c.rule(source, "-j", mark)
	}
}

// goTo sends packets of a source to their pool. If the route does not balance they
// return unchanged, and the filter table decides.
func (r *Rules) goTo(c *chain, l policy.Route, source string) {
	if l.Action == policy.Balance {
		c.rule(source, "-g", poolChain(l.Pool))
	} else {
		c.rule(source, "-j RETURN")
	}
}
