package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// Explain says what becomes of a packet.
func Explain(ctx context.Context, w *World, q Question, h Host) (*Report, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	back := findRoute(h, q.Source, 0) // by whose interface the client's packets come
	in := q.In
	if in == "" && back.err == nil {
		in = back.Interface
	}
	d := decide(w, q, in)
	return judge(d, gather(ctx, h, d, back)), nil
}

// judge holds a decision against facts.
func judge(d *decision, f *facts) *Report {
	r := &Report{Question: d.question, Outcome: d.outcome, Expected: d.expected()}
	for i := serviceStep; i <= hostStep; i++ {
		r.Steps = append(r.Steps, Step{Number: i, Name: stepNames[i]})
	}
	r.service(d)
	r.announced(d)
	r.source(d, f)
	if d.outcome == Listed {
		return r.listed(d)
	}
	if d.outcome != Balanced {
		r.addProblem(Problem{Step: r.stepOf(d), Text: d.outcome + ": " + d.why, Hint: d.hint, Sure: true})
	}
	if d.frontend != nil {
		r.choice(d, f)
		r.kernel(d, f)
	}
	(&way{r, d, f}).follow()
	r.conclude(d, f.looked)
	return r
}

// stepOf returns the step in which it is decided that a packet is not balanced.
func (r *Report) stepOf(d *decision) int {
	switch {
	case d.frontend == nil:
		return serviceStep
	case !d.frontend.Admits(d.question.Source):
		return sourceStep
	}
	return choiceStep
}

// service is step 1. Of an address without port listed says more.
func (r *Report) service(d *decision) {
	if d.use == nil {
		if d.why != "" {
			r.addLine(serviceStep, "none: %s", d.why)
		}
		if d.hint != "" {
			r.addLine(serviceStep, "%s", d.hint)
		}
		return
	}
	u := d.use
	r.Service = u.Key.String()
	text := fmt.Sprintf("%s (%s), %s, policy %s", d.frontend.ServicePort, place(u.UnitService), kindText(d.frontend.Key.Kind), d.policy())
	if d.frontend.Split() {
		text += ", decided apart for this host and local sources"
	}
	r.addLine(serviceStep, "%s", text)
	if wanted := d.refusedUnit(); wanted != "" {
		r.addLine(serviceStep, "%s", wanted)
	}
}

func kindText(k policy.Kind) string {
	return [...]string{
		policy.VIP: "address in vips", policy.External: "address in external_ips",
		policy.LoadBalancer: "address in load_balancer_ips", policy.NodePort: "node port",
	}[k]
}

// policy is the traffic policy that holds for the packet.
func (d *decision) policy() string {
	if d.frontend.Key.Kind == policy.VIP {
		return d.use.InternalTrafficPolicy.String()
	}
	ways := d.use.ExternalTrafficPolicy.String()
	if d.route == d.frontend.FromLocal && d.route.Pool != d.frontend.Outside.Pool {
		ways += " for others, cluster for this one"
	}
	return ways
}

// source is step 2.
func (r *Report) source(d *decision, f *facts) {
	r.addLine(sourceStep, "%s", d.whoAsks(f))
	if d.frontend == nil {
		return
	}
	if ranges := d.frontend.SourceRanges; d.frontend.Restricted {
		text := "in none of " + fmt.Sprint(ranges)
		if i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(d.question.Source) }); i >= 0 {
			text = "admitted by source range " + ranges[i].String()
		}
		r.addLine(sourceStep, "%s", text)
	}
	if d.outcome == Balanced {
		masq, why := d.masquerade(netip.Addr{})
		r.addLine(sourceStep, "%s: %s", map[bool]string{true: "masqueraded", false: "keeps its address"}[masq], why)
	}
}

func (d *decision) whoAsks(f *facts) string {
	by := d.host.LocalBy(d.sender)
	switch {
	case d.sender.Host:
		return d.question.Source.String() + " is this host itself"
	case by != "":
		return d.question.Source.String() + " is local, by " + by
	}
	text := "not local"
	if len(d.world.Node.LocalCIDRs) == 0 && len(d.world.Node.LocalInterfaces) == 0 {
		text += " (no local_cidrs, no local_interfaces)"
	}
	switch {
	case d.question.In != "":
		text += ", comes in by " + d.question.In
	case f.back.err == nil:
		text += ", taken to come in by " + f.back.Interface
	}
	return text
}

// kernel is step 4.
func (r *Report) kernel(d *decision, f *facts) {
	var present []string
	missing := 0
	for _, o := range f.objects {
		if o.Present {
			present = append(present, o.Name)
			continue
		}
		if missing++; missing <= maxNamed {
			r.addLine(kernelStep, "%s: MISSING", o.Name)
		}
	}
	if missing > 0 {
		r.addStop(kernelStep, ownOrder, fmt.Sprintf("%d of our objects are not in the kernel", missing),
			"svcproxy run puts them there; svcproxy status says whether its syncs fail")
	}
	if len(present) > 0 {
		r.addLine(kernelStep, "%s: %s: present", d.world.Mode, some(present))
	}
}

// listed ends the report of an address without port.
func (r *Report) listed(d *decision) *Report {
	for _, u := range d.uses {
		for _, f := range u.frontends {
			route := f.RouteOf(d.sender, &d.host)
			action := fmt.Sprintf("%s, %d endpoints", route.Action, len(route.Pool.Targets))
			if !f.Admits(d.question.Source) {
				action = "drop: not in its source ranges"
			}
			r.addLine(serviceStep, "%d/%s  %s (%s), %s: %s", f.Key.Port, f.Key.Protocol, f.ServicePort, place(u.UnitService), kindText(f.Key.Kind), action)
			r.Works = true
		}
	}
	r.Steps = slices.DeleteFunc(r.Steps, func(s Step) bool { return s.Number != serviceStep && s.Number != sourceStep })
	r.Verdict = "ask for one of these with :PORT/PROTOCOL"
	return r
}

// conclude writes the verdict. looked is of how many endpoints the way was looked at.
func (r *Report) conclude(d *decision, looked int) {
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return a.order - b.order })
	var whole, part, maybe []string
	for _, p := range r.Problems {
		text := fmt.Sprintf("%s (%d)", p.Text, p.Step)
		switch {
		case !p.Sure:
			maybe = append(maybe, text)
		case len(p.Endpoint) == 0 || len(p.Endpoint) == len(r.Expected):
			whole = append(whole, text)
		default:
			part = append(part, fmt.Sprintf("%s: %s", addresses(p.Endpoint), text))
		}
	}
	blocked := len(slices.DeleteFunc(slices.Clone(r.Expected), func(e Expected) bool { return !e.Blocked }))
	r.Works = len(whole) == 0 && len(part) == 0
	switch rest := some(append(part, maybe...)); {
	case d.outcome != Balanced:
		r.Verdict = fmt.Sprintf("%s: %s (%d)", d.outcome, d.why, r.stepOf(d))
		if d.hint != "" {
			r.Verdict += "; " + d.hint
		}
	case len(whole) > 0:
		r.Verdict = "does not work: " + whole[0]
		if also := append(whole[1:], part...); len(also) > 0 {
			r.Verdict += "; also " + some(also)
		}
	case blocked > 0 && blocked == len(r.Expected):
		r.Verdict = "does not work: " + rest
	case len(part) > 0:
		r.Verdict = fmt.Sprintf("works for %d of %d endpoints only: %s", looked-blocked, looked, rest)
	case len(maybe) > 0:
		r.Verdict = "works, unless: " + rest
	default:
		r.Verdict = "works"
	}
}

func addresses(list []netip.AddrPort) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return some(words)
}

// announced reports whether the address is announced to the network. A packet that is seen here has arrived; where it is
// not, a missing announcement may be the cause.
func (r *Report) announced(d *decision) {
	for _, a := range d.world.Announced {
		switch {
		case a.Address != d.question.Dest:
		case a.Announced:
			r.addLine(serviceStep, "announced by %s", a.Means)
		default:
			r.addLine(serviceStep, "NOT announced by %s: %s", a.Means, a.Reason)
		}
	}
}
