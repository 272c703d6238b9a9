package policy_test

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func TestAnnouncements(t *testing.T) {
	type edits = []func(*source.Service)
	const one, two = "10.0.0.1", "10.0.0.2"
	tests := []struct {
		name  string
		svc   edits
		known policy.Conditions
		want  string
	}{
		{"not asked for", edits{policytest.Endpoints(one)}, nil, ""},
		{"its VIPs", edits{policytest.ByBGP, policytest.Endpoints(one)}, nil, "10.96.0.10"},
		{"external addresses, and no VIP", edits{policytest.ByBGP, policytest.Endpoints(one), policytest.Balanced("203.0.113.9", "203.0.113.1"), func(s *source.Service) { s.ExternalIPs = policytest.Addrs("203.0.113.5") }}, nil,
			"203.0.113.1 203.0.113.5 203.0.113.9"},
		{"an address that is external and balanced", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one), policytest.Balanced("203.0.113.1")}, nil, "203.0.113.1"},
		{"external addresses of the other family alone", edits{policytest.ByBGP, policytest.Endpoints(one), policytest.Balanced("2001:db8::9")}, nil, ""},
		{"both families", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one), policytest.Balanced("2001:db8::9")}, nil, "203.0.113.1"},
		{"both means, and no interface has it", edits{policytest.Announce(source.BGP | source.L2), policytest.External, policytest.Endpoints(one)}, nil, "203.0.113.1 203.0.113.1/l2"},
		{"both means, an address of this host", edits{policytest.Announce(source.BGP | source.L2), policytest.Endpoints(one), policytest.Balanced("192.0.2.1")}, nil, "192.0.2.1=own_address 192.0.2.1/l2"},
		{"by neighbours alone, without endpoints", edits{policytest.Announce(source.L2), policytest.Balanced("192.0.2.1")}, nil, "192.0.2.1/l2=no_endpoint"},

		{"no endpoint", edits{policytest.ByBGP, policytest.External}, nil, "203.0.113.1=no_endpoint"},
		{"none of the family", edits{policytest.ByBGP, policytest.External, policytest.Endpoints("2001:db8::2")}, nil, "203.0.113.1=no_endpoint"},
		{"none that serves the port", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one), policytest.OtherPort(0)}, nil, "203.0.113.1=no_endpoint"},
		{"none ready", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one + " notready")}, nil, "203.0.113.1=none_usable"},
		{"terminating is usable", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one + " terminating")}, nil, "203.0.113.1"},
		{"all drained", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one)}, policytest.Conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"one drained", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained"), "203.0.113.1"},
		{"drained, weight 0 and disabled", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one, two+" weight=0", "10.0.0.3 disabled")}, policytest.Conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"one drained, one not ready", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one, two+" notready")}, policytest.Conditions(one + " drained"), "203.0.113.1=none_usable"},
		{"disabled", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one), policytest.TurnedOff}, nil, "203.0.113.1=disabled"},

		{"passes", edits{policytest.ByBGP, policytest.External, policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" passed", two+" failed"), "203.0.113.1"},
		{"all fail, and are used", edits{policytest.ByBGP, policytest.External, policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"all fail, and are refused", edits{policytest.ByBGP, policytest.External, policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"one fails, the other is drained", edits{policytest.ByBGP, policytest.External, policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" drained"), "203.0.113.1=all_failed"},
		{"no result yet", edits{policytest.ByBGP, policytest.External, policytest.Probed, policytest.Endpoints(one, two)}, nil, "203.0.113.1=unproven"},
		{"no result yet, refuse", edits{policytest.ByBGP, policytest.External, policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(one + " failed"), "203.0.113.1=unproven"},
		{"a check that nobody asks for", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one)}, policytest.Conditions(one + " failed"), "203.0.113.1"},

		{"local, one here", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here", two)}, nil, "203.0.113.1"},
		{"local, none here", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one, two)}, nil, "203.0.113.1=no_endpoint"},
		{"local, that here fails", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Probed, policytest.Endpoints(one+" @here", two)}, policytest.Conditions(one+" failed", two+" passed"), "203.0.113.1=none_usable"},
		{"local, that here is drained", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here", two)}, policytest.Conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"local, all fail", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Probed, policytest.Endpoints(one+" @here", two)}, policytest.Conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"local, that here terminates and others are ready", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here terminating", two)}, nil, "203.0.113.1=terminating"},
		{"local, one here is ready, one terminates", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here terminating", "10.0.0.3 @here", two)}, nil, "203.0.113.1"},
		{"local, all terminate", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here terminating", two+" terminating")}, nil, "203.0.113.1"},
		{"local, that here terminates and others are not ready", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints(one+" @here terminating", two+" notready")}, nil, "203.0.113.1"},
		{"local, that here terminates, others passed", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Probed, policytest.Endpoints(one+" @here terminating", two)}, policytest.Conditions(one+" passed", two+" passed"), "203.0.113.1=terminating"},
		{"local, that here terminates, others failed", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Probed, policytest.Endpoints(one+" @here terminating", two)}, policytest.Conditions(one+" passed", two+" failed"), "203.0.113.1"},
		{"local, that here terminates, others have no result", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.Probed, policytest.Endpoints(one+" @here terminating", two)}, policytest.Conditions(one + " passed"), "203.0.113.1"},
		{"local, that here terminates, at one port of two", edits{policytest.ByBGP, policytest.ExternalLocal, policytest.TwoPorts, policytest.Endpoints(one+" @here", "10.0.0.3 @here terminating", two), policytest.OtherPort(0)}, nil, "203.0.113.1"},
		{"cluster, that here terminates", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one+" @here terminating", two)}, nil, "203.0.113.1"},
		{"internal local, that here terminates", edits{policytest.ByBGP, policytest.InternalLocal, policytest.Endpoints(one+" @here terminating", two)}, nil, "10.96.0.10=terminating"},
		{"local for the other kind of traffic", edits{policytest.ByBGP, policytest.External, policytest.InternalLocal, policytest.Endpoints(one)}, nil, "203.0.113.1"},
		{"internal local, none here", edits{policytest.ByBGP, policytest.InternalLocal, policytest.Endpoints(one)}, nil, "10.96.0.10=no_endpoint"},

		{"one port of two serves", edits{policytest.ByBGP, policytest.External, policytest.TwoPorts, policytest.Endpoints(one), policytest.OtherPort(0)}, nil, "203.0.113.1"},
		{"another has its port", edits{policytest.ByBGP, policytest.External, policytest.Endpoints(one), func(s *source.Service) {
			s.Without = []source.PortAddr{{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("203.0.113.1:80")}}
		}}, nil, "203.0.113.1=claimed"},
		{"node ports are no address", edits{policytest.ByBGP, policytest.Endpoints(one), func(s *source.Service) { s.VIPs, s.Ports[0].NodePort = nil, 30080 }}, nil, ""},
	}
	for _, tt := range tests {
		svc, node := policytest.Service(tt.svc...), policytest.Node()
		var got []policy.Announcement
		if r := policy.Resolve(svc, tt.known, node, policy.IPv4); r != nil {
			got = r.Announced
		} else {
			got = policy.Announcements(policy.Subject{Service: svc, Conditions: tt.known}, node, policy.IPv4, nil)
		}
		if policytest.ShowAnnounced(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, policytest.ShowAnnounced(got), tt.want)
		}
	}
}

// A policy local is announced where health_check_node_port answers 200, and where no node has a ready endpoint.
func TestAnnouncedAsHealthPortAnswers(t *testing.T) {
	for _, here := range []string{"", " notready", " terminating", " weight=0", " disabled"} {
		for _, there := range []string{"", " notready", " terminating", " weight=0"} {
			svc := policytest.Service(policytest.ByBGP, policytest.ExternalLocal, policytest.Endpoints("10.0.0.1 @here"+here, "10.0.0.2"+there))
			healthy := policy.LocalReady(policy.Subject{Service: svc}, policytest.Node()).IPv4 > 0
			announced := policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).Announced[0].Withheld == policy.NotWithheld
			last := here == " terminating" && there != ""
			if announced != (healthy || last) {
				t.Errorf("here%s, there%s: healthy %v, announced %v", here, there, healthy, announced)
			}
		}
	}
}
