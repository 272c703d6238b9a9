package traffic

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

var (
	one   = netip.MustParseAddrPort("192.168.10.11:8080")
	two   = netip.MustParseAddrPort("192.168.10.12:8080")
	other = netip.MustParseAddrPort("192.168.10.13:8080")
	node  = netip.MustParseAddr("192.0.2.1")

	compareAddrs = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
)

// at is where packets are sent to.
func at(p source.Protocol, addr string) proxier.FrontendAddr {
	return proxier.FrontendAddr{Protocol: p, AddrPort: netip.MustParseAddrPort(addr)}
}

// service is one with a VIP, TCP port 80, and node port 30080, and these endpoints.
func service(name, vip string, endpoints ...netip.AddrPort) *policy.Resolved {
	r := &policy.Resolved{Key: source.Key{Namespace: "default", Name: name}}
	pool := &policy.Pool{Protocol: source.TCP}
	for _, e := range endpoints {
		pool.Targets = append(pool.Targets, policy.NewTarget(e, 1))
	}
	r.Pools = []*policy.Pool{pool}
	for _, k := range []policy.FrontendKey{
		{Addr: netip.MustParseAddr(vip), Protocol: source.TCP, Port: 80},
		{Addr: netip.IPv4Unspecified(), Protocol: source.TCP, Port: 30080, Kind: policy.NodePort},
	} {
		r.Frontends = append(r.Frontends, &policy.Frontend{Key: k})
	}
	return r
}

func serving(services ...*policy.Resolved) []report.Family {
	return []report.Family{{Family: policy.IPv4, Host: policy.Host{NodePortAddrs: []netip.Addr{node}}, Resolved: services}}
}

// A seen is what one reading finds.
type seen struct {
	services     []*policy.Resolved
	there, ended map[proxier.Pair]proxier.Count
	unread       bool
}

// read has b read what is seen, at so many seconds.
func (b *book) read(second int64, s seen) {
	b.begin(serving(s.services...))
	for p, c := range s.ended {
		b.ended(p, c)
	}
	for p, c := range s.there {
		b.there(p, c)
	}
	b.end(time.Unix(second, 0), func(netip.AddrPort) bool { return !s.unread })
}

func TestBookCounts(t *testing.T) {
	web := service("web", "10.96.0.10", one, two)
	vip := func(target netip.AddrPort) proxier.Pair {
		return proxier.Pair{FrontendAddr: at(source.TCP, "10.96.0.10:80"), Target: target}
	}
	port := proxier.Pair{FrontendAddr: at(source.TCP, "192.0.2.1:30080"), Target: one}
	type counts = map[proxier.Pair]proxier.Count
	for _, tt := range []struct {
		name     string
		readings []seen // two seconds apart
		want     []Service
	}{
		{"nothing", []seen{{services: []*policy.Resolved{web}}}, []Service{}},
		{"the first reading has no rates", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 3, Bytes: 100}}, ended: counts{vip(one): {Connections: 4}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Active: 3, Connections: 4, Bytes: 100}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Active: 3, Connections: 4, Bytes: 100}}, {Address: two},
		}}}},
		{"all addresses of a service are summed", []seen{
			{services: []*policy.Resolved{web}},
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 1}, port: {Active: 2}, vip(two): {Active: 5}}, ended: counts{port: {Connections: 6}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Active: 8, Connections: 6, ConnectionRate: 3}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Active: 3, Connections: 6, ConnectionRate: 3}}, {Address: two, Figures: Figures{Active: 5}},
		}}}},
		{"bytes of a connection are counted once, whether it is there or has ended", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 1, Packets: 2, Bytes: 100}}},
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 1, Packets: 3, Bytes: 300}}},
			{services: []*policy.Resolved{web}, ended: counts{vip(one): {Packets: 5, Bytes: 500}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Packets: 5, Bytes: 500, PacketRate: 1, ByteRate: 100}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Packets: 5, Bytes: 500, PacketRate: 1, ByteRate: 100}}, {Address: two},
		}}}},
		{"counters of the kernel that begin again do not fall", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Connections: 50}}},
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Connections: 1}}},
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Connections: 3}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Connections: 52, ConnectionRate: 1}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Connections: 52, ConnectionRate: 1}}, {Address: two},
		}}}},
		{"a former endpoint is shown while it has connections", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 1}, vip(other): {Active: 2}}, ended: counts{vip(other): {Connections: 2}}},
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 1}, vip(other): {Active: 1}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Active: 2, Connections: 2}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Active: 1}}, {Address: two}, {Address: other, Gone: true, Figures: Figures{Active: 1, Connections: 2}},
		}}}},
		{"what it had stays with the service", []seen{
			{services: []*policy.Resolved{web}, ended: counts{vip(other): {Connections: 2}}},
			{services: []*policy.Resolved{web}},
			{services: []*policy.Resolved{web}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Connections: 2}, Endpoints: []Endpoint{{Address: one}, {Address: two}}}}},
		{"an endpoint keeps what it had while it is idle", []seen{
			{services: []*policy.Resolved{web}, ended: counts{vip(one): {Connections: 2}}},
			{services: []*policy.Resolved{web}},
			{services: []*policy.Resolved{web}, ended: counts{vip(one): {Connections: 4}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Connections: 6, ConnectionRate: 2}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Connections: 6, ConnectionRate: 2}}, {Address: two},
		}}}},
		{"what is remembered of a former endpoint is counted once", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(other): {Bytes: 7}}},
			{services: []*policy.Resolved{web}, there: counts{vip(other): {Bytes: 7}}},
			{services: []*policy.Resolved{web}, there: counts{vip(other): {Bytes: 7}}},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Bytes: 7}, Endpoints: []Endpoint{
			{Address: one}, {Address: two}, {Address: other, Gone: true, Figures: Figures{Bytes: 7}},
		}}}},
		{"what cannot be read stays as it was", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 4, Bytes: 7}}},
			{services: []*policy.Resolved{web}, unread: true},
			{services: []*policy.Resolved{web}, unread: true},
		}, []Service{{Namespace: "default", Name: "web", Figures: Figures{Active: 4, Bytes: 7}, Endpoints: []Endpoint{
			{Address: one, Figures: Figures{Active: 4, Bytes: 7}}, {Address: two},
		}}}},
		{"other addresses, ports and protocols are not ours", []seen{
			{services: []*policy.Resolved{web}, there: counts{
				{FrontendAddr: at(source.UDP, "10.96.0.10:80"), Target: one}:      {Active: 1},
				{FrontendAddr: at(source.TCP, "10.96.0.10:81"), Target: one}:      {Active: 1},
				{FrontendAddr: at(source.TCP, "198.51.100.1:30080"), Target: one}: {Active: 1},
			}},
		}, []Service{}},
		{"a service that is gone is forgotten", []seen{
			{services: []*policy.Resolved{web}, there: counts{vip(one): {Active: 4, Bytes: 9}}},
			{there: counts{vip(one): {Active: 4}}},
			{services: []*policy.Resolved{web}},
		}, []Service{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b book
			for i, s := range tt.readings {
				b.read(int64(2*i), s)
			}
			var r Report
			b.report(&Query{Endpoints: true}, &r)
			if diff := cmp.Diff(tt.want, r.Services, compareAddrs); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// names of services in the order of a Report.
func names(r *Report) (list []string) {
	for _, s := range r.Services {
		list = append(list, s.Name)
	}
	return list
}

func TestReportOfBook(t *testing.T) {
	var b book
	all := []*policy.Resolved{
		service("a", "10.96.0.1", one), service("b", "10.96.0.2", one, two), service("c", "10.96.0.3", one), service("idle", "10.96.0.4", one),
	}
	for _, r := range all {
		r.Frontends = r.Frontends[:1]
	}
	pair := func(vip string) proxier.Pair { return proxier.Pair{FrontendAddr: at(source.TCP, vip), Target: one} }
	b.read(0, seen{services: all})
	b.read(2, seen{
		services: all,
		there:    map[proxier.Pair]proxier.Count{pair("10.96.0.1:80"): {Active: 1, Bytes: 5}, pair("10.96.0.2:80"): {Active: 2, Bytes: 4}},
		ended:    map[proxier.Pair]proxier.Count{pair("10.96.0.3:80"): {Connections: 10}, pair("10.96.0.2:80"): {Connections: 9}},
	})
	for _, tt := range []struct {
		query Query
		want  []string
		more  int
	}{
		{Query{}, []string{"c", "b", "a"}, 0},
		{Query{Sort: "active"}, []string{"b", "a", "c"}, 0},
		{Query{Sort: "bytes"}, []string{"a", "b", "c"}, 0},
		{Query{Sort: "name"}, []string{"a", "b", "c"}, 0},
		{Query{Limit: 1}, []string{"c"}, 2},
		{Query{Names: []string{"idle"}}, []string{"idle"}, 0},
		{Query{Names: []string{"[ai]*"}}, []string{"a", "idle"}, 0},
		{Query{Names: []string{"default/b", "other/a"}}, []string{"b"}, 0},
		{Query{Names: []string{"team=x"}, Labels: map[source.Key]map[string]string{{Namespace: "default", Name: "idle"}: {"team": "x"}, {Namespace: "default", Name: "a"}: {"team": "y"}}}, []string{"idle"}, 0},
	} {
		if err := tt.query.Check(); err != nil {
			t.Errorf("%+v: %v", tt.query, err)
		}
		var r Report
		b.report(&tt.query, &r)
		if diff := cmp.Diff(tt.want, names(&r)); diff != "" || r.More != tt.more {
			t.Errorf("%+v (-want +got), %d more:\n%s", tt.query, r.More, diff)
		}
	}

	var r Report
	b.metrics(2, &r)
	if diff := cmp.Diff([]string{"a", "b"}, names(&r)); diff != "" || r.More != 2 {
		t.Errorf("metrics of two, %d left out (-want +got):\n%s", r.More, diff)
	}
	b.addEndpoints(r.Services, 2)
	if len(r.Services[0].Endpoints) != 1 || len(r.Services[1].Endpoints) != 1 || r.Services[1].More != 1 {
		t.Errorf("endpoints are not bounded: %+v", r.Services)
	}
}

func TestQueryCheck(t *testing.T) {
	for _, tt := range []struct {
		query Query
		want  string
	}{
		{Query{Names: []string{"[a"}}, `"[a" is no name or pattern of services; want web, prod/web, or with wildcards prod/* or web-?, or a label as in team=web`},
		{Query{Sort: "size\x1b"}, `cannot sort by "size\x1b"; want conns, active, bytes or name`},
		{Query{Limit: -1}, "cannot tell of -1 services; want 0 to 10000"},
		{Query{Limit: 10_001}, "cannot tell of 10001 services; want 0 to 10000"},
	} {
		if err := tt.query.Check(); err == nil || err.Error() != tt.want {
			t.Errorf("%+v: %v\nwant: %s", tt.query, err, tt.want)
		}
	}
}
