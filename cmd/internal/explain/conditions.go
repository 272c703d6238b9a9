package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// condition returns what is known of an endpoint of the packet's service.
func (d *decision) condition(e *source.Endpoint) (policy.Condition, policy.Detail) {
	at := d.use.EndpointAt(e)
	if d.details == nil && d.world.Details != nil {
		d.details = d.world.Details(d.use.Key)
	}
	return d.use.Conditions[at], d.details[at]
}

// fails reports whether the check of an endpoint does.
func (d *decision) fails(e *source.Endpoint) bool {
	known, _ := d.condition(e)
	return d.use.HealthCheck != nil && known.Check == source.CheckFailed
}

// whyUnused says why an endpoint gets no new connections.
func (d *decision) whyUnused(e endpoint) string {
	_, detail := d.condition(e.Endpoint)
	switch e.state {
	case policy.Down:
		return downText(detail)
	case policy.Draining:
		return drainText(detail.Drain)
	case policy.Backup:
		return fmt.Sprintf("backup of tier %d, used when fewer than %d of lower tiers are usable", e.Tier, max(1, d.use.MinUp))
	case policy.Checking:
		return "checking: its check has no result yet"
	}
	return e.state.String()
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

// downText says why and for how long a check has failed: "DOWN: connect timed out (for 12s)".
func downText(d policy.Detail) string {
	text := "DOWN"
	switch {
	case d.Error != "":
		text += ": " + d.Error
	case !d.Asked.IsZero():
		text += ": its last answer was good, and more have to be"
	}
	if !d.Since.IsZero() {
		text += fmt.Sprintf(" (for %v)", seconds(time.Since(d.Since)))
	}
	return text
}

// drainText says who drains an endpoint, for how long, why and until when.
func drainText(d *policy.Drain) string {
	if d == nil {
		return "draining"
	}
	text := fmt.Sprintf("draining, by %s for %v", d.By, seconds(time.Since(d.At)))
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	if left := time.Until(d.Until); left > 0 {
		text += fmt.Sprintf(", %v left", seconds(left))
	}
	return text
}

func seconds(d time.Duration) time.Duration { return max(0, d.Truncate(time.Second)) }

// firstUnused names the first endpoint that is down or drained, and why; empty: there is none.
func (d *decision) firstUnused() string {
	for _, e := range d.endpoints() {
		if e.state == policy.Down || e.state == policy.Draining {
			return fmt.Sprintf("%s %s", netip.AddrPortFrom(e.Addr, e.port), d.whyUnused(e))
		}
	}
	return ""
}

// checks notes that all endpoints that are used fail their check, and what is not known of them.
func (r *Report) checks(d *decision, used []*source.Endpoint) {
	if d.use.HealthCheck == nil {
		return
	}
	if d.world.Details == nil {
		r.say(choiceStep, "what health checks say is known to the daemon only, and none was asked")
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
			r.say(choiceStep, "all endpoints have failed, and some pass their check again: those that failed with them are used while they may follow")
		}
		return
	}
	if len(used) == 0 || !d.fails(used[0]) {
		return
	}
	r.say(choiceStep, "no endpoint passes its check, and all_failed is use_all: those that fail are used")
	_, detail := d.condition(used[0])
	r.addProblem(Problem{Step: choiceStep, order: reverseOrder, Text: fmt.Sprintf("no endpoint answers, as their check says: %s %s", r.Expected[0].Address, downText(detail))})
}
