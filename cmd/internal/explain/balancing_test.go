package explain

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
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
		s.Endpoints[0] = s.Endpoints[0].With(source.Extras{MaxConnections: 100, MinConnections: 10})
		s.Endpoints[1] = s.Endpoints[1].With(source.Extras{MaxConnections: 7})
		tt.edit(s)
		w := world(s)
		w.Balancing = ipvs(tt.ipvs)
		var b strings.Builder
		fatal.If(t, ask(t, w, &fakeHost{sysctls: map[string]string{}}, client, "10.96.0.10:53/udp", "").Write(&b))
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

// What hashes is said, and where a client goes if that is of its address alone.
func TestHashedClientsHaveOneEndpoint(t *testing.T) {
	for _, tt := range []struct {
		on   source.HashOn
		src  string
		ipvs bool
		want string // in the choice; empty: nothing is said of maglev
	}{
		{source.NotHashed, client, false, ""},
		{source.ClientIPPort, client, false, "scheduler maglev: a hash of the client's address and port chooses, on every host alike"},
		{source.ClientIP, client, false, "scheduler maglev: a hash of the client's address chooses, on every host alike: for 203.0.113.9 it is 192.168.10.11:8080"},
		{source.ClientIP, "203.0.113.13", false, "scheduler maglev: a hash of the client's address chooses, on every host alike: for 203.0.113.13 it is 192.168.10.12:8080"},
		{source.ClientIP, client, true, "scheduler maglev: a hash of the client's address chooses, on every host alike, by the table of IPVS (mh)"},
	} {
		s := service()
		if s.HashOn = tt.on; tt.on != source.NotHashed {
			s.Scheduler = source.Maglev
		}
		w := world(s)
		w.Balancing = ipvs(tt.ipvs)
		var b strings.Builder
		fatal.If(t, ask(t, w, &fakeHost{sysctls: map[string]string{}}, tt.src, "10.96.0.10:80", "").Write(&b))
		got := ""
		for line := range strings.Lines(b.String()) {
			if _, said, found := strings.Cut(line, "scheduler maglev"); found {
				got += "scheduler maglev" + strings.TrimSuffix(said, "\n")
			}
		}
		if got != tt.want {
			t.Errorf("%s of %s, ipvs %v\n got: %s\nwant: %s", tt.on, tt.src, tt.ipvs, got, tt.want)
		}
	}
}
