package ipvs

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/source"
)

var (
	direct = lvs.Forwarding{Method: lvs.Direct}
	gue    = lvs.Forwarding{Method: lvs.Tunnel, Type: lvs.GUE, Port: 6080}
)

func TestWaysToDestinations(t *testing.T) {
	for _, tt := range []struct {
		of   source.Forwarding
		want lvs.Forwarding
		text string
	}{
		{source.Forwarding{}, lvs.Forwarding{}, "-m -w 1"},
		{source.Forwarding{Method: source.ForwardDirect}, direct, "-g -w 1"},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}, lvs.Forwarding{Method: lvs.Tunnel}, "-i -w 1 --tun-type ipip"},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GUE, Port: 6080}, gue, "-i -w 1 --tun-type gue --tun-port 6080 --tun-nocsum"},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GRE}, lvs.Forwarding{Method: lvs.Tunnel, Type: lvs.GRE}, "-i -w 1 --tun-type gre --tun-nocsum"},
	} {
		if got := wayOf(tt.of); got != tt.want || got.Text(1) != tt.text {
			t.Errorf("%v is %+v, %q, want %+v, %q", tt.of, got, got.Text(1), tt.want, tt.text)
		}
	}
}

// A way that changed is a change of the destination, which one that drains does not make.
func TestChangedWayChangesTheDestination(t *testing.T) {
	key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(source.TCP), Port: 80}
	at := netip.MustParseAddrPort("10.0.0.1:80")
	one := func(weight uint32, way lvs.Forwarding) *server {
		return &server{Server: lvs.Server{Key: key}, dests: []lvs.Destination{{AddrPort: at, Weight: weight, Forwarding: way}}}
	}
	for _, tt := range []struct {
		name       string
		have, want *server
		steps      []string
		left       string
	}{
		{"as it was", one(1, direct), one(1, direct), nil, "-g -w 1"},
		{"to direct", one(1, lvs.Forwarding{}), one(1, direct), []string{"change destination -a -t 10.96.0.1:80 -r 10.0.0.1:80 -g -w 1"}, "-g -w 1"},
		{"to masquerading", one(1, gue), one(1, lvs.Forwarding{}), []string{"change destination -a -t 10.96.0.1:80 -r 10.0.0.1:80 -m -w 1"}, "-m -w 1"},
		{"to another tunnel", one(1, lvs.Forwarding{Method: lvs.Tunnel}), one(1, gue),
			[]string{"change destination -a -t 10.96.0.1:80 -r 10.0.0.1:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-nocsum"}, "-i -w 1 --tun-type gue --tun-port 6080 --tun-nocsum"},
		{"draining", one(1, direct), nil, []string{"change destination -a -t 10.96.0.1:80 -r 10.0.0.1:80 -g -w 0"}, "-g -w 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := difference{now: time.Now(), timeout: time.Hour, drains: drains{}}
			held := d.server(key, tt.have, tt.want)
			var steps []string
			for _, s := range slices.Concat(d.first, d.last) {
				steps = append(steps, s.change().Op+" "+s.change().Object)
			}
			if !slices.Equal(steps, tt.steps) {
				t.Errorf("steps %q, want %q", steps, tt.steps)
			}
			if got, want := destText(key, held.dests[0]), "-a -t 10.96.0.1:80 -r 10.0.0.1:80 "+tt.left; got != want {
				t.Errorf("the kernel then holds %q, want %q", got, want)
			}
		})
	}
}

// A destination whose way the kernel could not change is gone.
func TestRefusedWayRemovesTheDestination(t *testing.T) {
	key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(source.TCP), Port: 80}
	to := lvs.Destination{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1, Forwarding: gue}
	servers := map[lvs.Key]*server{key: {dests: []lvs.Destination{to}}}
	step{op: updateDest, key: key, dest: to}.undo(servers)
	if n := len(servers[key].dests); n != 0 {
		t.Errorf("%d destinations", n)
	}
}
