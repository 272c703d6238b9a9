package explain

import (
	"fmt"

	"svcproxy.dev/svcproxy/source"
)

// atMost says how many connections an endpoint gets where that is limited.
func (d *decision) atMost(e *source.Endpoint) string {
	if e == nil || e.MaxConnections == 0 || !d.balancedOutside() {
		return ""
	}
	text := fmt.Sprintf(", at most %d connections", e.MaxConnections)
	if e.MinConnections > 0 {
		text += fmt.Sprintf(", then none until it has fewer than %d", e.MinConnections)
	}
	return text
}

// onePacket says that each packet is balanced by itself.
func (r *Report) onePacket(d *decision) {
	if d.outcome != Balanced || !d.route.Pool.OnePacket || !d.balancedOutside() {
		return
	}
	text := "one_packet: " + d.world.Balancer + " chooses for each packet by itself"
	if !d.route.Pool.Forward.Answers() {
		text += "; answers of endpoints are not translated, and do not reach the client"
	}
	r.say(choiceStep, text)
}
