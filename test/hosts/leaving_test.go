//go:build netns

package hosts

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// healthPort is the health_check_node_port of a service of policy local.
const healthPort = 32000

// States of an endpoint.
const (
	ready  = ""
	leaves = "ready = false\nterminating = true\n"
)

// TestLocalEndpointTerminates: under policy local routers lose an address whose endpoint here terminates while another
// host has a ready one, together with the answer of the health check. What still comes to this host is served.
func TestLocalEndpointTerminates(t *testing.T) {
	s := newSite(t)
	for _, r := range s.routers { // as one that has the network of the services by another way: connections stay on this host
		for i, a := range announced.Each() {
			s.run(r.host, fmt.Sprintf("ip route add %s via %s", netip.PrefixFrom(a, a.BitLen()-8).Masked(), hostAddr.Each()[i]))
		}
	}
	s.localService(ready, ready)
	s.serve()
	s.settings(bgpSettings{hold: "60s", restart: "60s", node: "here"})
	start := time.Now()
	s.must(s.d.Start())
	s.there("start", start)
	s.health(200)
	end := s.traffic()

	start = time.Now()
	s.localService(leaves, ready)
	s.health(503)
	answered := time.Since(start)
	const marked = 2 * time.Second // for so long routes are marked before they go
	if took := s.gone("the endpoint here terminates", start); took > answered+pace.Scale(marked+2*time.Second) {
		t.Errorf("the health check answers 503 after %v, and routes went after %v", answered, took)
	}

	start = time.Now()
	s.localService(leaves, leaves)
	s.there("the other terminates, too", start)
	s.health(503)
	end()
}

// localService writes a service of policy local, with an endpoint here and one on another host that are ready, or terminate.
func (s *site) localService(here, there string) {
	s.t.Helper()
	text := fmt.Sprintf("[[services]]\nname = \"web\"\nexternal_ips = [%q, %q]\nports = [{ port = 80, target_port = 8080, node_port = 30080 }]\n"+
		"announce = [\"bgp\"]\nexternal_traffic_policy = \"local\"\nhealth_check_node_port = %d\n", announced.V4, announced.V6, healthPort)
	for node, e := range map[string]struct {
		addr  lab.Dual
		state string
	}{"here": {serverAddr, here}, "there": {pair("10.0.0.3", "fd00:10::3"), there}} {
		for _, a := range e.addr.Each() {
			text += fmt.Sprintf("[[services.endpoints]]\naddress = %q\nnode = %q\n%s", a, node, e.state)
		}
	}
	s.must(s.d.WriteFile("web.toml", text))
}

// health waits until the health check answers a client with a status, by each family.
func (s *site) health(want int) {
	s.t.Helper()
	for _, a := range hostAddr.Each() {
		s.must(pace.Poll(patience, func() error {
			got, body, err := s.routers[0].host.Get(fmt.Sprintf("http://%s/", netip.AddrPortFrom(a, healthPort)))
			if err == nil && got != want {
				err = fmt.Errorf("the health check of %s answers %d %q, want %d", a, got, body, want)
			}
			return err
		}))
	}
}
