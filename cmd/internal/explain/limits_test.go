package explain

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// What IPVS is told of packets and connections is said where IPVS balances.
func TestOnePacketAndLimits(t *testing.T) {
	for _, tt := range []struct {
		what string
		ipvs bool
		edit func(*source.Service)
		want []string // of these all
	}{
		{"another mode", false, func(*source.Service) {}, nil},
		{"masquerade", true, func(*source.Service) {}, []string{
			"gets 50%, at most 100 connections, then none until it has fewer than 10", "gets 50%, at most 7 connections\n",
			"one_packet: IPVS chooses for each packet by itself; answers of endpoints are not translated, and do not reach the client",
		}},
		{"direct", true, func(s *source.Service) { s.Forward.Method = source.ForwardDirect }, []string{
			"at most 7 connections\n", "one_packet: IPVS chooses for each packet by itself\n",
		}},
	} {
		s := service()
		s.Ports = []source.Port{{Protocol: source.UDP, Port: 53, TargetPort: 53}}
		s.OnePacket = true
		s.Endpoints[0].MaxConnections, s.Endpoints[0].MinConnections = 100, 10
		s.Endpoints[1].MaxConnections = 7
		tt.edit(s)
		w := world(s)
		w.Balancing = ipvs(tt.ipvs)
		var b strings.Builder
		if err := ask(t, w, &fakeHost{sysctls: map[string]string{}}, client, "10.96.0.10:53/udp", "").Write(&b); err != nil {
			t.Fatal(err)
		}
		for _, text := range tt.want {
			if !strings.Contains(b.String(), text) {
				t.Errorf("%s: no %q in\n%s", tt.what, text, b.String())
			}
		}
		if said := strings.Contains(b.String(), "one_packet") || strings.Contains(b.String(), "at most"); said != (tt.want != nil) {
			t.Errorf("%s: it is said: %v\n%s", tt.what, said, b.String())
		}
	}
}
