package explain

import (
	"fmt"
	"net/netip"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// hashing says that no chance chooses, and of a client whose address alone is hashed where it goes.
func (r *Report) hashing(d *decision) {
	if d.outcome != Balanced || d.route.Pool.Hash.On == source.NotHashed {
		return
	}
	on := map[source.HashOn]string{source.ClientIP: "address", source.ClientIPPort: "address and port"}[d.route.Pool.Hash.On]
	text := "scheduler maglev: a hash of the client's " + on + " chooses, on every host alike"
	switch {
	case d.world.HashTable != "":
		text += ", by the table of " + d.world.HashTable
	case d.route.Pool.Hash.On == source.ClientIP:
		text += fmt.Sprintf(": for %s it is %s", d.question.Source, hashed(d.route.Pool, d.question.Source))
	}
	r.say(choiceStep, text)
}

// hashed returns the target of a client in nftables mode, whatever its port.
func hashed(p *policy.Pool, client netip.Addr) netip.AddrPort {
	list := make([]maglev.Endpoint, len(p.Targets))
	for i, t := range p.Targets {
		list[i] = maglev.Endpoint{AddrPort: t.AddrPort, Weight: t.Weight}
	}
	table := maglev.Fill(nil, maglev.Size(p.Hash.Endpoints), list)
	return p.Targets[table[maglev.Slot(len(table), netip.AddrPortFrom(client, 0), false)]].AddrPort
}

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
