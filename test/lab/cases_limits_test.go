//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

var limitGroups = []group{{
	name:     "limits",
	settings: "[limits]\nfrontends = 26\nfrontend_endpoints = 40\nfrontend_source_ranges = 30\n",
	cases: []testCase{
		{name: "all files together", run: testLimitOfAll},
		{name: "frontends", except: inSoakOnly, run: testLimit("frontends", 26, func(_ *env, _, last *Service, over int) {
			last.Ports = manyPorts(12 + over) // and 12 of wide
		})},
		{name: "endpoints", except: inSoakOnly, run: testLimit("frontend_endpoints", 40, func(e *env, wide, last *Service, over int) {
			wide.Endpoints = ofIPv4(at(e.Local...)) // for each of 12 ports
			last.Endpoints = append(last.Endpoints, ofIPv4(at(e.Remote[:1+over]...))...)
		})},
		{name: "source ranges", except: inSoakOnly, run: testLimit("frontend_source_ranges", 30, func(e *env, wide, last *Service, over int) {
			wide.SourceRanges = e.manyRanges(2) // for each of 12 ports
			last.SourceRanges = e.manyRanges(6 + over)
		})},
	},
}}

// manyPorts returns ports of TCP, of which endpoints serve the first.
func manyPorts(n int) (list []Port) {
	for i := range uint16(n) {
		list = append(list, Port{Name: fmt.Sprint("p", i), Port: EndpointPorts[0] + i})
	}
	return list
}

// manyRanges returns source ranges, of which the last has the client.
func (e *env) manyRanges(n int) (list []netip.Prefix) {
	for i := range byte(n - 1) {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, i}), 32))
	}
	return append(list, netip.PrefixFrom(e.Client.Addr().V4, 32))
}

func ofIPv4(list []Endpoint) []Endpoint {
	return slices.DeleteFunc(list, func(ep Endpoint) bool { return !ep.Address.Is4() })
}

// testLimit: services that reach a limit exactly are served. With one more their file is refused, check says why, and
// they are served as before. fill changes two services of 12 ports and of one, each with one endpoint; the marker adds
// two frontends and two endpoints.
func testLimit(key string, most int, fill func(e *env, wide, last *Service, over int)) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		services := func(h *Host, over int) []Service {
			wide, last := e.named("wide", 1, ofIPv4(at(h))...), e.named("last", 2, ofIPv4(at(h))...)
			wide.VIPs, wide.Ports = wide.VIPs[:1], manyPorts(12)
			last.VIPs, last.Ports = last.VIPs[:1], manyPorts(1)
			fill(e, &wide, &last, over)
			return []Service{wide, last}
		}
		accepted := services(e.Local[0], 0)
		e.apply(t, accepted...)
		e.areBalanced(t, accepted)

		e.edit(t, services(e.Local[1], 1)...)
		e.expectState(t, e.name()+".json", source.Stale, fmt.Sprintf("more than %d", most))
		out, err := e.daemon.Command("check")
		for _, part := range []string{fmt.Sprintf("have %d ", most+1), fmt.Sprintf(", more than %d; ", most), "raise " + key + " in [limits]"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("check says %q and %v, want %q", out, err, part)
			}
		}
		e.areBalanced(t, accepted)

		accepted = services(e.Local[1], 0)
		e.apply(t, accepted...)
		e.areBalanced(t, accepted)
	}
}

// areBalanced checks that services have all of their endpoints of IPv4, and no others.
func (e *env) areBalanced(t *testing.T, services []Service) {
	t.Helper()
	var checks []check
	for _, s := range services {
		hosts := slices.DeleteFunc(slices.Concat(e.Local, e.Remote), func(h *Host) bool {
			return !slices.ContainsFunc(s.Endpoints, func(ep Endpoint) bool { return ep.Address == h.Addr().V4 })
		})
		checks = append(checks, check{from: e.Client, to: Dual{V4: s.VIPs[0]}, port: EndpointPorts[0], protocols: []source.Protocol{source.TCP}, want: by(hosts...)})
	}
	e.expect(t, checks...)
}

// rangeFile is a file of a service whose ports are 8080 to last.
func (e *env) rangeFile(last int, endpoints []Endpoint) string {
	vips, _ := json.Marshal(e.vip(2).Each())
	var addresses []string
	for _, ep := range endpoints {
		addresses = append(addresses, ep.Address.String())
	}
	list, _ := json.Marshal(addresses)
	return fmt.Sprintf(`{"services": [{"name": "%s-range", "vips": %s, "ports": [{"name": "p", "port": "8080-%d", "protocol": ["tcp", "udp"]}], "endpoints": %s}]}`, e.name(), vips, last, list)
}

// testLimitOfAll: up to the limit everything is served. A file with which there would be more stays as it was, others
// go on, and it comes in when there is room.
func testLimitOfAll(t *testing.T, e *env) {
	small := e.named("small", 1, at(e.Local[0])...) // 4 frontends
	e.apply(t, small)
	e.remove(t, "range.json")
	write := func(last int, endpoints []Endpoint) {
		t.Helper()
		if err := e.daemon.WriteFile("range.json", e.rangeFile(last, endpoints)); err != nil {
			t.Fatal(err)
		}
	}
	write(8084, at(e.Local[0])) // 20 more, and 2 of the marker
	e.expect(t, check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[0])})
	write(8085, at(e.Local[1])) // 4 too many
	small.Endpoints = at(e.Local[1])
	e.apply(t, small)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[0])},
	)
	e.apply(t)
	e.expect(t, check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[1])})
}
