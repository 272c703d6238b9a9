package proxier

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

func announce(m source.Means) func(*source.Service) {
	return func(s *source.Service) { s.Announce = m }
}

func byBGP(s *source.Service) { s.Announce = source.BGP }
func balanced(list ...string) func(*source.Service) {
	return func(s *source.Service) { s.LoadBalancerIPs = addrs(list...) }
}
func turnedOff(s *source.Service) { s.Disabled = true }
func twoPorts(s *source.Service) {
	s.Ports = append(s.Ports, source.Port{Name: "tls", Protocol: source.TCP, Port: 443, TargetPort: 8443})
}

// showAnnounced has one word for each announcement: the address, the means unless bgp, and why it is withheld.
func showAnnounced(list []Announcement) string {
	var words []string
	for _, a := range list {
		word := a.Addr.String()
		if a.Means != source.BGP {
			word += "/" + a.Means.String()
		}
		if a.Withheld != NotWithheld {
			word += "=" + a.Withheld.String()
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestAnnouncements(t *testing.T) {
	type edits = []func(*source.Service)
	const one, two = "10.0.0.1", "10.0.0.2"
	tests := []struct {
		name  string
		svc   edits
		known Conditions
		want  string
	}{
		{"not asked for", edits{testEndpoints(one)}, nil, ""},
		{"its VIPs", edits{byBGP, testEndpoints(one)}, nil, "10.96.0.10"},
		{"external addresses, and no VIP", edits{byBGP, testEndpoints(one), balanced("203.0.113.9", "203.0.113.1"), func(s *source.Service) { s.ExternalIPs = addrs("203.0.113.5") }}, nil,
			"203.0.113.1 203.0.113.5 203.0.113.9"},
		{"an address that is external and balanced", edits{byBGP, external, testEndpoints(one), balanced("203.0.113.1")}, nil, "203.0.113.1"},
		{"external addresses of the other family alone", edits{byBGP, testEndpoints(one), balanced("2001:db8::9")}, nil, ""},
		{"both families", edits{byBGP, external, testEndpoints(one), balanced("2001:db8::9")}, nil, "203.0.113.1"},
		{"both means, and no interface has it", edits{announce(source.BGP | source.L2), external, testEndpoints(one)}, nil, "203.0.113.1 203.0.113.1/l2"},
		{"both means, an address of this host", edits{announce(source.BGP | source.L2), testEndpoints(one), balanced("192.0.2.1")}, nil, "192.0.2.1=own_address 192.0.2.1/l2"},
		{"by neighbours alone, without endpoints", edits{announce(source.L2), balanced("192.0.2.1")}, nil, "192.0.2.1/l2=no_endpoint"},

		{"no endpoint", edits{byBGP, external}, nil, "203.0.113.1=no_endpoint"},
		{"none of the family", edits{byBGP, external, testEndpoints("2001:db8::2")}, nil, "203.0.113.1=no_endpoint"},
		{"none that serves the port", edits{byBGP, external, testEndpoints(one), otherPort(0)}, nil, "203.0.113.1=no_endpoint"},
		{"none ready", edits{byBGP, external, testEndpoints(one + " notready")}, nil, "203.0.113.1=none_usable"},
		{"terminating is usable", edits{byBGP, external, testEndpoints(one + " terminating")}, nil, "203.0.113.1"},
		{"all drained", edits{byBGP, external, testEndpoints(one)}, conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"one drained", edits{byBGP, external, testEndpoints(one, two)}, conditions(one + " drained"), "203.0.113.1"},
		{"drained, weight 0 and disabled", edits{byBGP, external, testEndpoints(one, two+" weight=0", "10.0.0.3 disabled")}, conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"one drained, one not ready", edits{byBGP, external, testEndpoints(one, two+" notready")}, conditions(one + " drained"), "203.0.113.1=none_usable"},
		{"disabled", edits{byBGP, external, testEndpoints(one), turnedOff}, nil, "203.0.113.1=disabled"},

		{"passes", edits{byBGP, external, probed, testEndpoints(one, two)}, conditions(one+" passed", two+" failed"), "203.0.113.1"},
		{"all fail, and are used", edits{byBGP, external, probed, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"all fail, and are refused", edits{byBGP, external, probedRefuse, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"one fails, the other is drained", edits{byBGP, external, probedRefuse, testEndpoints(one, two)}, conditions(one+" failed", two+" drained"), "203.0.113.1=all_failed"},
		{"no result yet", edits{byBGP, external, probed, testEndpoints(one, two)}, nil, "203.0.113.1=unproven"},
		{"no result yet, refuse", edits{byBGP, external, probedRefuse, testEndpoints(one, two)}, conditions(one + " failed"), "203.0.113.1=unproven"},
		{"a check that nobody asks for", edits{byBGP, external, testEndpoints(one)}, conditions(one + " failed"), "203.0.113.1"},

		{"local, one here", edits{byBGP, externalLocal, testEndpoints(one+" @here", two)}, nil, "203.0.113.1"},
		{"local, none here", edits{byBGP, externalLocal, testEndpoints(one, two)}, nil, "203.0.113.1=no_endpoint"},
		{"local, that here fails", edits{byBGP, externalLocal, probed, testEndpoints(one+" @here", two)}, conditions(one+" failed", two+" passed"), "203.0.113.1=none_usable"},
		{"local, that here is drained", edits{byBGP, externalLocal, testEndpoints(one+" @here", two)}, conditions(one + " drained"), "203.0.113.1=none_wanted"},
		{"local, all fail", edits{byBGP, externalLocal, probed, testEndpoints(one+" @here", two)}, conditions(one+" failed", two+" failed"), "203.0.113.1=all_failed"},
		{"local, that here terminates and others are ready", edits{byBGP, externalLocal, testEndpoints(one+" @here terminating", two)}, nil, "203.0.113.1=terminating"},
		{"local, one here is ready, one terminates", edits{byBGP, externalLocal, testEndpoints(one+" @here terminating", "10.0.0.3 @here", two)}, nil, "203.0.113.1"},
		{"local, all terminate", edits{byBGP, externalLocal, testEndpoints(one+" @here terminating", two+" terminating")}, nil, "203.0.113.1"},
		{"local, that here terminates and others are not ready", edits{byBGP, externalLocal, testEndpoints(one+" @here terminating", two+" notready")}, nil, "203.0.113.1"},
		{"local, that here terminates, others passed", edits{byBGP, externalLocal, probed, testEndpoints(one+" @here terminating", two)}, conditions(one+" passed", two+" passed"), "203.0.113.1=terminating"},
		{"local, that here terminates, others failed", edits{byBGP, externalLocal, probed, testEndpoints(one+" @here terminating", two)}, conditions(one+" passed", two+" failed"), "203.0.113.1"},
		{"local, that here terminates, others have no result", edits{byBGP, externalLocal, probed, testEndpoints(one+" @here terminating", two)}, conditions(one + " passed"), "203.0.113.1"},
		{"local, that here terminates, at one port of two", edits{byBGP, externalLocal, twoPorts, testEndpoints(one+" @here", "10.0.0.3 @here terminating", two), otherPort(0)}, nil, "203.0.113.1"},
		{"cluster, that here terminates", edits{byBGP, external, testEndpoints(one+" @here terminating", two)}, nil, "203.0.113.1"},
		{"internal local, that here terminates", edits{byBGP, internalLocal, testEndpoints(one+" @here terminating", two)}, nil, "10.96.0.10=terminating"},
		{"local for the other kind of traffic", edits{byBGP, external, internalLocal, testEndpoints(one)}, nil, "203.0.113.1"},
		{"internal local, none here", edits{byBGP, internalLocal, testEndpoints(one)}, nil, "10.96.0.10=no_endpoint"},

		{"one port of two serves", edits{byBGP, external, twoPorts, testEndpoints(one), otherPort(0)}, nil, "203.0.113.1"},
		{"another has its port", edits{byBGP, external, testEndpoints(one), func(s *source.Service) {
			s.Without = []source.PortAddr{{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("203.0.113.1:80")}}
		}}, nil, "203.0.113.1=claimed"},
		{"node ports are no address", edits{byBGP, testEndpoints(one), func(s *source.Service) { s.VIPs, s.Ports[0].NodePort = nil, 30080 }}, nil, ""},
	}
	for _, tt := range tests {
		svc, node := testService(tt.svc...), testNode()
		var got []Announcement
		if r := Resolve(svc, tt.known, node, IPv4); r != nil {
			got = r.Announced
		} else {
			got = announcements(Subject{svc, tt.known}, node, IPv4, nil)
		}
		if showAnnounced(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, showAnnounced(got), tt.want)
		}
	}
}

// An address of lo is for routers, one of a link is not; where it moves, the service is looked at again.
func TestAnnouncementsOfLoopback(t *testing.T) {
	onLo := testNode(func(n *Node) { n.LoopbackAddrs = addrs("192.0.2.1") })
	svc := testService(announce(source.BGP|source.L2), balanced("192.0.2.1"), testEndpoints("10.0.0.1"))
	for node, want := range map[*Node]string{onLo: "192.0.2.1 192.0.2.1/l2", testNode(): "192.0.2.1=own_address 192.0.2.1/l2"} {
		if got := showAnnounced(Resolve(svc, nil, node, IPv4).Announced); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	change := nodeChangeOf(onLo, testNode())
	if !change.touches(svc) || change.touches(testService(external)) {
		t.Errorf("it touches others, or not this one: %+v", change)
	}
}

// Families are announced each for itself.
func TestAnnouncementsOfFamilies(t *testing.T) {
	svc := testService(byBGP, external, balanced("2001:db8::9"), testEndpoints("10.0.0.1"))
	if got := showAnnounced(Resolve(svc, nil, testNode(), IPv6).Announced); got != "2001:db8::9=no_endpoint" {
		t.Error(got)
	}
}

// A policy local is announced where health_check_node_port answers 200, and where no node has a ready endpoint.
func TestAnnouncedAsHealthPortAnswers(t *testing.T) {
	for _, here := range []string{"", " notready", " terminating", " weight=0", " disabled"} {
		for _, there := range []string{"", " notready", " terminating", " weight=0"} {
			svc := testService(byBGP, externalLocal, testEndpoints("10.0.0.1 @here"+here, "10.0.0.2"+there))
			healthy := localReady(Subject{Service: svc}, testNode()).IPv4 > 0
			announced := Resolve(svc, nil, testNode(), IPv4).Announced[0].Withheld == NotWithheld
			last := here == " terminating" && there != ""
			if announced != (healthy || last) {
				t.Errorf("here%s, there%s: healthy %v, announced %v", here, there, healthy, announced)
			}
		}
	}
}

// Every cause has a word of its own, and a text for people.
func TestWithheldWords(t *testing.T) {
	words := map[string]bool{NotWithheld.String(): true}
	for _, w := range AllWithheld() {
		if words[w.String()] {
			t.Errorf("cause %d has the word %q of another", w, w)
		}
		words[w.String()] = true
		switch w {
		case NoMeans, NoRouter, NotCarried, KernelLacksIt, NoEndpoints, NoUsable, WantedUnusable, AllFail: // more is said of these
		default:
			if withheldWords[w] == "" {
				t.Errorf("%s has no text", w)
			}
		}
	}
	if fmt.Sprint(source.BGP|source.L2) != "bgp,l2" {
		t.Error(source.BGP | source.L2)
	}
}
