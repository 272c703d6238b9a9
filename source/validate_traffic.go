package source

import (
	"fmt"
	"net/netip"
	"strings"
)

// forwarding finds what cannot be together with the way of packets to endpoints.
func (v *validator) forwarding() {
	f := v.Forward
	if f.Tunnel != NoTunnel && f.Method != ForwardTunnel {
		v.fault(At("tunnel_type"), "tunnel_type without a tunnel", `it needs forward = "tunnel"`)
	}
	if f.Port != 0 && f.Tunnel != GUE {
		v.fault(At("tunnel_port"), "tunnel_port without a tunnel over UDP", `it needs forward = "tunnel" and tunnel_type = "gue"`)
	}
	if !f.Answers() {
		return
	}
	for i, p := range v.Ports {
		at := v.portAt(i)
		v.samePort(p.TargetPort, p, At("ports", at, "target_port"), fmt.Sprintf("ports[%d]", at))
		if p.NodePort != 0 {
			v.fault(At("ports", at, "node_port"), fmt.Sprintf("node_port %d with forward = %q", p.NodePort, f.Method),
				"endpoints have the addresses of the service, and not those of this host: leave it out")
		}
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if len(e.Ports) == 0 {
			continue
		}
		for _, p := range v.Ports {
			if n, other := e.Ports[p.Name]; other && !v.full() {
				v.samePort(n, p, At("endpoints", i), "endpoint "+netip.AddrPortFrom(e.Addr, n).String())
			}
		}
	}
	if m := v.Masquerade; m != MasqueradeAsSet && m != MasqueradeNever {
		v.fault(At("masquerade"), fmt.Sprintf("masquerade = %q with forward = %q", m, v.Forward.Method),
			"endpoints answer clients themselves, so these keep their address: leave it out")
	}
}

// samePort notes a fault where packets to a port would have to get to another one; 0: to none.
func (v *validator) samePort(n uint16, p Port, at Path, what string) {
	if n == 0 || p.Port == 0 || n == p.Port {
		return
	}
	v.fault(at, fmt.Sprintf("%s has the port %d, and forward = %q leaves port %d as it is", what, n, v.Forward.Method, p.Port),
		"leave the other port out")
}

// hashing finds what does not go together with the scheduler Maglev, or needs it.
func (v *validator) hashing() {
	switch {
	case v.Scheduler != Maglev && v.HashOn != NotHashed:
		v.fault(At("hash_on"), "hash_on is for scheduler maglev", `write scheduler = "maglev", or leave it out`)
	case v.Scheduler == Maglev && v.HashOn == NotHashed:
		v.fault(At("hash_on"), "scheduler maglev hashes nothing", "")
	case v.Scheduler == Maglev && v.Affinity != 0:
		v.fault(At("session_affinity"), "session_affinity is a record of this host, and scheduler maglev chooses as every other host does",
			`leave it out; with hash_on = "client_ip" a client keeps its endpoint`)
	}
}

// schedulerFlags finds flags that the scheduler does not have.
func (v *validator) schedulerFlags() {
	f, at := v.SchedulerFlags, At("scheduler_flags")
	if f == 0 {
		return
	}
	switch v.Scheduler {
	case "":
		v.fault(at, "scheduler_flags without scheduler", "name it: each scheduler has flags of its own")
		return
	case Maglev:
		v.fault(at, "scheduler maglev has its flags from hash_on", "leave it out: mh-port is hash_on = \"client_ip_port\", and mh-fallback is always set")
		return
	}
	has := FlagsOfScheduler(v.Scheduler)
	if wrong := f &^ has; wrong != 0 {
		v.fault(at, fmt.Sprintf("scheduler %s has no %s", Excerpt(v.Scheduler), Either(strings.Split(wrong.String(), ","))),
			"want "+Either(strings.Split(has.String(), ",")))
	}
}

// onePacket finds what does not go together with one_packet.
func (v *validator) onePacket() {
	if !v.OnePacket {
		return
	}
	switch {
	case !v.HasUDP():
		v.fault(At("one_packet"), "one_packet is for UDP, and the service has no such port", `leave it out, or write protocol = "udp" in a port`)
	case !v.Forward.Answers():
		v.warn(At("one_packet"), "with one_packet IPVS translates no answer, so those of endpoints do not reach clients",
			`this is for packets without answers; else endpoints have to answer clients themselves: forward = "direct" or "tunnel"`)
	}
}
