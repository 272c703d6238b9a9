//go:build !nokubernetes

package kubernetes

import (
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"svcproxy.dev/svcproxy/source"
)

// All that is discarded of an object reaches status, and the rest is used.
func TestNotesReachStatus(t *testing.T) {
	odd := eps("odd", "a", "10.0.0.1", "127.0.0.1", "10.0.0.x", "fd00::1", "192.0.2.1", "010.0.0.2", "::ffff:10.0.0.3")
	odd.Ports[0].Port = new(int32(80))
	odd.Endpoints[0].Zone = new("a zone; of / its own")
	named := eps("named", "a", "pod.example.com")
	named.AddressType = discovery.AddressTypeFQDN
	service := svc("a", "10.96.0.1", func(s *core.Service) {
		s.Spec.Type = core.ServiceTypeLoadBalancer
		s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1", "300.0.0.1"}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/40"}
		s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "198.51.100.1"}}
		s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: "odd", Protocol: "DCCP", Port: 5001})
	})
	want := `service "default/a": external IP "300.0.0.1" is not an address: left out
service "default/a": external IP 2001:db8::1 is of a family of which the service has no cluster IP: left out
service "default/a": source range "10.0.0.0/40" cannot be read: it admits nobody, and opens no family that has no other range
service "default/a": port 5001/"DCCP" is of no protocol or number that can be served: left out
service "default/a": slice "named" has names in place of addresses: left out
service "default/a": endpoint 127.0.0.1 is a loopback address: left out
service "default/a": endpoint "10.0.0.x" is not an address: left out
service "default/a": endpoint 192.0.2.1:80/tcp is an address and port of the service itself: left out
service "default/a": endpoint fd00::1 is of a family of which the service has no cluster IP: left out`
	r := run(t, at(startAPIServer(t, service, odd, named)))
	r.wants("default/a 10.0.0.1 10.0.0.2 10.0.0.3")
	st := r.src.Status()
	if len(st.Objects) != 1 || st.Objects[0].State != source.Accepted || st.Objects[0].Services != 1 {
		t.Fatalf("objects %+v, want one that is accepted", st.Objects)
	}
	var got []string
	for _, f := range st.Objects[0].Faults {
		if !f.Warning {
			t.Errorf("%s is no warning", f)
		}
		got = append(got, strings.TrimPrefix(f.String(), "warning: "))
	}
	if !slices.Equal(got, strings.Split(want, "\n")) {
		t.Errorf("\n got: %s\nwant: %s", strings.Join(got, "\n      "), want)
	}
}

// Nobody reads a thousand lines.
func TestNotesAreBounded(t *testing.T) {
	list := make([]string, 1000)
	for i := range list {
		list[i] = "x"
	}
	n := parseSlice(eps("s", "a", list...), newWords()).notes.all()
	if len(n) != maxNotes+1 || n[maxNotes] != "and 995 more" {
		t.Errorf("%d lines: %q", len(n), n)
	}
}
