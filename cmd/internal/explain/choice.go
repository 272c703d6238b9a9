package explain

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/internal/maglev"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// choice is step 3.
func (r *Report) choice(d *decision, f *facts) {
	used, others := r.sorted(d)
	for i, e := range r.Expected {
		if i < maxLines/2 {
			r.addLine(choiceStep, "%s gets %s%s", e.Address, strings.TrimSuffix(fmt.Sprintf("%.1f", e.Share*100), ".0")+"%", d.asUsed(used[i])+d.atMost(used[i]))
		} else if i == maxLines/2 {
			r.addLine(choiceStep, "and %d more", len(r.Expected)-i)
		}
	}
	places := d.places()
	for _, e := range others[:min(len(others), maxLines/2)] {
		r.addLine(choiceStep, "%s not used: %s (%s)", netip.AddrPortFrom(e.Addr, e.port), d.whyUnused(e), places(e.index))
	}
	if more := len(others) - maxLines/2; more > 0 {
		r.addLine(choiceStep, "and %d more that are not used", more)
	}
	if len(d.use.Endpoints) == 0 {
		r.addLine(choiceStep, "the service has no endpoints")
	}
	r.checks(d, used)
	if d.outcome == Balanced {
		r.balancing(d, f)
	}
}

// sorted returns the endpoints that are used, as Expected has them, and the others.
func (r *Report) sorted(d *decision) (used []*source.Endpoint, others []endpoint) {
	at := make(map[netip.AddrPort]int, len(r.Expected))
	for i, e := range r.Expected {
		at[e.Address] = i
	}
	used = make([]*source.Endpoint, len(r.Expected))
	for _, e := range d.endpoints() {
		i, expected := at[netip.AddrPortFrom(e.Addr, e.port)]
		if expected && e.state == policy.Ready {
			used[i] = e.Endpoint
			continue
		}
		others = append(others, e)
	}
	return used, others
}

// places returns what says where an endpoint stands.
func (d *decision) places() func(index int) string {
	var known []source.Position
	if d.world.Places != nil && d.use.Pos.File != "" {
		known = d.world.Places(d.use.Service)
	}
	return func(i int) string {
		if i < len(known) {
			return fmt.Sprintf("%s:%d:%d", filepath.Base(known[i].File), known[i].Line, known[i].Col)
		}
		return fmt.Sprintf("endpoint %d of %s", i+1, d.use.Key)
	}
}

// balancing says how one of several endpoints is chosen: for a client that has one, by a hash, for each packet.
func (r *Report) balancing(d *decision, f *facts) {
	pool := d.route.Pool
	switch {
	case pool.Affinity == 0:
	case f.kept != nil:
		r.addLine(choiceStep, "session affinity: this client keeps %s for %s more", f.kept.Target, f.kept.Left)
	case d.world.Balancer != "":
		r.addLine(choiceStep, "session affinity for %s, kept by %s", pool.Affinity, d.world.Balancer)
	default:
		r.addLine(choiceStep, "session affinity for %s: no record of this client", pool.Affinity)
	}
	on := map[source.HashOn]string{source.ClientIP: "address", source.ClientIPPort: "address and port"}[pool.Hash.On]
	hashed := "scheduler maglev: a hash of the client's " + on + " chooses, on every host alike"
	switch {
	case pool.Hash.On == source.NotHashed:
	case d.world.HashTable != "":
		r.addLine(choiceStep, "%s, by the table of %s", hashed, d.world.HashTable)
	case pool.Hash.On == source.ClientIP:
		list := make([]maglev.Endpoint, len(pool.Targets))
		for i, t := range pool.Targets {
			list[i] = maglev.Endpoint{AddrPort: t.AddrPort(), Weight: t.Weight}
		}
		table := maglev.Fill(nil, maglev.Size(pool.Hash.Endpoints), list)
		slot := maglev.Slot(len(table), netip.AddrPortFrom(d.question.Source, 0), false) // in nftables mode, whatever the port
		r.addLine(choiceStep, "%s: for %s it is %s", hashed, d.question.Source, list[table[slot]].AddrPort)
	default:
		r.addLine(choiceStep, "%s", hashed)
	}
	if !pool.OnePacket || !d.balancedOutside() {
		return
	}
	text := "one_packet: " + d.world.Balancer + " chooses for each packet by itself"
	if !pool.Forward.Answers() {
		text += "; answers of endpoints are not translated, and do not reach the client"
	}
	r.addLine(choiceStep, "%s", text)
}

// asUsed says what is to be known of an endpoint that gets new connections, if there is something.
func (d *decision) asUsed(e *source.Endpoint) string {
	if e == nil {
		return ""
	}
	known, detail := d.condition(e)
	switch {
	case d.fails(e):
		return ", though " + downText(detail)
	case d.use.HealthCheck != nil && known.Check == source.CheckUnknown && d.world.Details != nil:
		return ", though its check has no result yet"
	case d.use.SlowStart > 0 && known.Share > 0:
		return fmt.Sprintf(", in a slow start: with %d%% of its weight", 10*int(known.Share))
	case e.Tier > 0:
		return fmt.Sprintf(", backup of tier %d", e.Tier)
	}
	return ""
}

// checks notes that all endpoints that are used fail their check, and what is not known of them.
func (r *Report) checks(d *decision, used []*source.Endpoint) {
	if d.use.HealthCheck == nil {
		return
	}
	if d.world.Details == nil {
		r.addLine(choiceStep, "what health checks say is known to the daemon only, and none was asked")
		return
	}
	passes := func(e *source.Endpoint) bool {
		if e == nil {
			return true
		}
		known, _ := d.condition(e)
		return known.Check == source.CheckPassed
	}
	fails := func(e *source.Endpoint) bool { return e != nil && d.fails(e) }
	if slices.ContainsFunc(used, passes) {
		if slices.ContainsFunc(used, fails) {
			r.addLine(choiceStep, "all endpoints have failed, and some pass their check again: those that failed with them are used while they may follow")
		}
		return
	}
	if len(used) == 0 || !d.fails(used[0]) {
		return
	}
	r.addLine(choiceStep, "no endpoint passes its check, and all_failed is use_all: those that fail are used")
	_, detail := d.condition(used[0])
	r.addProblem(Problem{Step: choiceStep, order: reverseOrder, Text: fmt.Sprintf("no endpoint answers, as their check says: %s %s", r.Expected[0].Address, downText(detail))})
}

// atMost says how many connections an endpoint gets where that is limited.
func (d *decision) atMost(e *source.Endpoint) string {
	if e == nil || e.Extras().MaxConnections == 0 || !d.balancedOutside() {
		return ""
	}
	limits := e.Extras()
	text := fmt.Sprintf(", at most %d connections", limits.MaxConnections)
	if limits.MinConnections > 0 {
		text += fmt.Sprintf(", then none until it has fewer than %d", limits.MinConnections)
	}
	return text
}
