package proxier

import (
	"net/netip"
	"slices"
	"testing"

	"svcproxy/source"
)

func dns(edit ...func(*source.Service)) *source.Service {
	s := testService(edit...)
	s.Ports = []source.Port{{Protocol: source.UDP, Port: 53, TargetPort: 5353, NodePort: 30053}}
	return s
}

func TestStaleFlows(t *testing.T) {
	const vip, nodePort = "10.96.0.10:53", "192.0.2.1:30053"
	type flow struct{ dst, reply string }
	one := dns(testEndpoints("10.0.0.1"))
	tests := []struct {
		name     string
		old, new *source.Service
		full     bool
		gone     []flow // of the flows below
	}{
		{"endpoint replaced", one, dns(testEndpoints("10.0.0.2")), false, []flow{{vip, "10.0.0.1:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}, {nodePort, "10.0.0.1:5353"}}},
		{"endpoint added", one, dns(testEndpoints("10.0.0.1", "10.0.0.2")), false, nil},
		{"weight 0 has not left", one, dns(testEndpoints("10.0.0.1 weight=0", "10.0.0.2")), false, nil},
		{"neither ready nor serving", one, dns(testEndpoints("10.0.0.1 notready")), false, []flow{{vip, "10.0.0.1:5353"}, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}, {nodePort, "10.0.0.1:5353"}}},
		{"service removed", one, nil, false, []flow{{vip, "10.0.0.1:5353"}, {nodePort, "10.0.0.1:5353"}}},
		{"service appears", nil, one, false, []flow{{vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}}},
		{"full look", one, one, true, []flow{{vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}}},
	}
	flows := []flow{
		{vip, "10.0.0.1:5353"}, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"},
		{nodePort, "10.0.0.1:5353"},
		{"10.96.0.11:53", "10.0.0.1:5353"}, {"192.0.2.2:30053", "10.0.0.1:5353"}, {"10.96.0.10:54", "10.0.0.1:5353"}, // not ours
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFamily(IPv4, nil, testNode())
			if tt.old != nil {
				f.set(tt.old.Key, tt.old, testNode(), f.lastGood)
				f.done(SyncResult{})
			}
			f.set(one.Key, tt.new, testNode(), f.lastGood)
			s := f.staleFlows(tt.full)
			var gone []flow
			for _, fl := range flows {
				if s.stale(Flow{Dst: netip.MustParseAddrPort(fl.dst), Reply: netip.MustParseAddrPort(fl.reply)}) {
					gone = append(gone, fl)
				}
			}
			if !slices.Equal(gone, tt.gone) {
				t.Errorf("removed\n got: %v\nwant: %v", gone, tt.gone)
			}
		})
	}
}
