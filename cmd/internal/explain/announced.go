package explain

import "fmt"

// announced says whether the network is told of the address. A packet that has come is not in
// question: one that has not may be why.
func (r *Report) announced(d *decision) {
	for _, a := range d.world.Announced {
		switch {
		case a.Address != d.question.Dest:
		case a.Announced:
			r.say(serviceStep, "announced by "+a.Means)
		default:
			r.say(serviceStep, fmt.Sprintf("NOT announced by %s: %s", a.Means, a.Reason))
		}
	}
}
