package proxier

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
	answer := flow{dst: "10.9.9.9:999", reply: vip} // from the VIP to a client
	one := dns(testEndpoints("10.0.0.1"))
	tests := []struct {
		name     string
		old, new *source.Service
		full     bool
		gone     []flow // of the flows below
	}{
		{"endpoint replaced", one, dns(testEndpoints("10.0.0.2")), false, []flow{answer, {vip, "10.0.0.1:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}, {nodePort, "10.0.0.1:5353"}}},
		{"endpoint added", one, dns(testEndpoints("10.0.0.1", "10.0.0.2")), false, nil},
		{"weight 0 has not left", one, dns(testEndpoints("10.0.0.1 weight=0", "10.0.0.2")), false, nil},
		{"neither ready nor serving", one, dns(testEndpoints("10.0.0.1 notready")), false, []flow{answer, {vip, "10.0.0.1:5353"}, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}, {nodePort, "10.0.0.1:5353"}}},
		{"service removed", one, nil, false, []flow{{vip, "10.0.0.1:5353"}, {nodePort, "10.0.0.1:5353"}}},
		{"service appears", nil, one, false, []flow{answer, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}}},
		{"full look", one, one, true, []flow{answer, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"}}},
	}
	flows := []flow{
		answer,
		{vip, "10.0.0.1:5353"}, {vip, "10.0.0.2:5353"}, {vip, vip}, {vip, "10.0.0.9:53"},
		{nodePort, "10.0.0.1:5353"},
		{"10.96.0.11:53", "10.0.0.1:5353"}, {"192.0.2.2:30053", "10.0.0.1:5353"}, {"10.96.0.10:54", "10.0.0.1:5353"}, // not ours
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := testFamily(nil)
			if tt.old != nil {
				f.set(tt.old.Key, tt.old, time.Time{})
				f.done(&SyncResult{})
			}
			f.set(one.Key, tt.new, time.Time{})
			s := f.staleFlows(tt.full)
			var gone []flow
			for _, fl := range flows {
				src := netip.MustParseAddrPort("10.9.9.9:999")
				if fl == answer {
					src = netip.MustParseAddrPort(vip)
				}
				if s.stale(Flow{Src: src, Dst: netip.MustParseAddrPort(fl.dst), Reply: netip.MustParseAddrPort(fl.reply)}) {
					gone = append(gone, fl)
				}
			}
			if !slices.Equal(gone, tt.gone) {
				t.Errorf("removed\n got: %v\nwant: %v", gone, tt.gone)
			}
		})
	}
}

// A second look follows each change of UDP, and only those.
func TestLoopLooksForFlowsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := &countingFlows{}
		l := start(t, &kernel{}, func(c *Config) { c.Flows = fl })
		l.Synced("file")
		synctest.Wait()
		u := file("a", "x 10.96.0.1:80")
		l.Apply(set(u))
		time.Sleep(time.Second)
		if n := fl.looks.Load(); n != 0 {
			t.Errorf("%d looks for a TCP service, want none", n)
		}
		u = file("b", "y 10.96.0.2:80")
		u.Services[0] = dns(testEndpoints("10.0.0.1"))
		l.Apply(set(u))
		synctest.Wait()
		if n := fl.looks.Load(); n != 1 {
			t.Errorf("%d looks after a change, want 1", n)
		}
		time.Sleep(time.Second)
		if n := fl.looks.Load(); n != 2 {
			t.Errorf("%d looks a second after the change, want 2", n)
		}
	})
}

type countingFlows struct{ looks atomic.Int32 }

func (c *countingFlows) Prune(context.Context, Family, func(Flow) bool) (int, error) {
	c.looks.Add(1)
	return 0, nil
}
