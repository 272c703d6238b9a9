//go:build bench

package bench

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/test/lab"
)

// kubeTableHead is what kube-proxy's nftables mode writes whatever the services are.
const kubeTableHead = `add table ip kube-proxy { comment "rules for kube-proxy" ; }
add chain ip kube-proxy mark-for-masquerade
add rule ip kube-proxy mark-for-masquerade mark set mark or 0x4000
add chain ip kube-proxy masquerading
add rule ip kube-proxy masquerading mark and 0x4000 == 0 return
add rule ip kube-proxy masquerading mark set mark xor 0x4000
add rule ip kube-proxy masquerading masquerade fully-random
add chain ip kube-proxy reject-chain
add rule ip kube-proxy reject-chain reject
add set ip kube-proxy cluster-ips { type ipv4_addr ; comment "Active ClusterIPs" ; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic" ; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict ; comment "vmap to drop or reject packets to services with no endpoints" ; }
add chain ip kube-proxy services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
add chain ip kube-proxy cluster-ips-check
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
add chain ip kube-proxy filter-prerouting { type filter hook prerouting priority -110 ; }
add chain ip kube-proxy filter-input { type filter hook input priority -110 ; }
add rule ip kube-proxy filter-input ct state new jump service-endpoints-check
add chain ip kube-proxy filter-forward { type filter hook forward priority -110 ; }
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
add chain ip kube-proxy filter-output { type filter hook output priority -110 ; }
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump cluster-ips-check
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
add rule ip kube-proxy nat-prerouting jump services
add chain ip kube-proxy nat-output { type nat hook output priority -100 ; }
add rule ip kube-proxy nat-output jump services
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
add rule ip kube-proxy nat-postrouting jump masquerading
`

// kubeTable returns the input of nft for services in the layout of kube-proxy 1.37:
// a chain of each service, whose rule holds an anonymous map of its endpoints.
func kubeTable(all []lab.Service) []byte {
	var chains, rest bytes.Buffer
	for i := range all {
		s := &all[i]
		chain := kubeServiceChain(s)
		fmt.Fprintf(&chains, "add chain ip kube-proxy %s\n", chain)
		fmt.Fprintf(&rest, "add element ip kube-proxy cluster-ips { %s }\n", s.VIPs[0])
		fmt.Fprintf(&rest, "add element ip kube-proxy service-ips { %s . tcp . %d : goto %s }\n", s.VIPs[0], s.Ports[0].Port, chain)
		kubeServiceRules(&rest, s)
	}
	return bytes.Join([][]byte{[]byte(kubeTableHead), chains.Bytes(), rest.Bytes()}, nil)
}

// kubeServiceRules writes what the chain of a service holds.
func kubeServiceRules(w *bytes.Buffer, s *lab.Service) {
	chain, port := kubeServiceChain(s), s.Ports[0]
	fmt.Fprintf(w, "add rule ip kube-proxy %s ip daddr %s tcp dport %d ip saddr != 10.244.0.0/16 jump mark-for-masquerade\n", chain, s.VIPs[0], port.Port)
	fmt.Fprintf(w, "add rule ip kube-proxy %s meta l4proto tcp dnat ip to numgen random mod %d map {", chain, len(s.Endpoints))
	separator := " "
	for i, e := range s.Endpoints {
		fmt.Fprintf(w, "%s%d : %s . %d", separator, i, e.Address, port.TargetPort)
		separator = " , "
	}
	w.WriteString(" }\n")
}

// kubeServiceChain names the chain of a service as kube-proxy does: a hash, and what it is of.
func kubeServiceChain(s *lab.Service) string {
	name := fmt.Sprintf("default/%s/tcp/%s", s.Name, s.Ports[0].Name)
	return fmt.Sprintf("service-%s-%s", kubeChain("", name)[:8], name)
}

// kubeChangeOne replaces the rules of one service.
func (n *node) kubeChangeOne(s *lab.Service) (time.Duration, error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "flush chain ip kube-proxy %s\n", kubeServiceChain(s))
	kubeServiceRules(&text, s)
	return n.load(text.Bytes(), "nft", "-f", "-")
}

// One service of two endpoints in kube-proxy's layout.
func TestKubeTable(t *testing.T) {
	s := makeServices(1)
	s[0].Endpoints = s[0].Endpoints[:2]
	const want = `add chain ip kube-proxy service-LBIN53DJ-default/service-00000/tcp/http
add element ip kube-proxy cluster-ips { 10.96.0.1 }
add element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 : goto service-LBIN53DJ-default/service-00000/tcp/http }
add rule ip kube-proxy service-LBIN53DJ-default/service-00000/tcp/http ip daddr 10.96.0.1 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
add rule ip kube-proxy service-LBIN53DJ-default/service-00000/tcp/http meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.128.0.1 . 8080 , 1 : 10.128.0.2 . 8080 }
`
	if got := string(kubeTable(s)[len(kubeTableHead):]); got != want {
		t.Errorf("kube-proxy's layout\n got: %s\nwant: %s", got, want)
	}
}
