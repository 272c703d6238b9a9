//go:build bench

package bench

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/test/lab"
)

// kubeHead are the rules that kube-proxy writes whatever the services are, and the jumps to them.
const kubeHead = `*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
`

const kubeTail = `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
COMMIT
`

// kubeRules returns what kube-proxy's iptables mode (1.28 and later) gives to
// iptables-restore for its first sync of the services.
func kubeRules(all []lab.Service) []byte {
	var chains, rules bytes.Buffer
	for i := range all {
		kubeService(&chains, &rules, &all[i])
	}
	return bytes.Join([][]byte{[]byte(kubeHead), chains.Bytes(), rules.Bytes(), []byte(kubeTail)}, nil)
}

// kubeService writes the chains and rules of one service: one chain of the
// service, one of each endpoint, and one rule in the dispatch.
func kubeService(chains, rules *bytes.Buffer, s *lab.Service) {
	port := s.Ports[0]
	name := fmt.Sprintf("default/%s:%s", s.Name, port.Name)
	svc := kubeChain("KUBE-SVC-", name+"tcp")
	packet := fmt.Sprintf(`-m comment --comment "%s cluster IP" -m tcp -p tcp -d %s --dport %d`, name, s.VIPs[0], port.Port)
	fmt.Fprintf(chains, ":%s - [0:0]\n", svc)
	fmt.Fprintf(rules, "-A KUBE-SERVICES %s -j %s\n", packet, svc)
	fmt.Fprintf(rules, "-A %s %s ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ\n", svc, packet)
	var endpoints bytes.Buffer // follow the rules of the service
	for i, e := range s.Endpoints {
		to := fmt.Sprintf("%s:%d", e.Address, port.TargetPort)
		sep := kubeChain("KUBE-SEP-", name+"tcp"+to)
		choice := ""
		if left := len(s.Endpoints) - i; left > 1 {
			choice = fmt.Sprintf("-m statistic --mode random --probability %0.10f ", 1/float64(left))
		}
		fmt.Fprintf(chains, ":%s - [0:0]\n", sep)
		fmt.Fprintf(rules, "-A %s -m comment --comment \"%s -> %s\" %s-j %s\n", svc, name, to, choice, sep)
		fmt.Fprintf(&endpoints, "-A %s -m comment --comment %s -s %s -j KUBE-MARK-MASQ\n", sep, name, e.Address)
		fmt.Fprintf(&endpoints, "-A %s -m comment --comment %s -m tcp -p tcp -j DNAT --to-destination %s\n", sep, name, to)
	}
	rules.Write(endpoints.Bytes())
}

// kubeChain names a chain as kube-proxy does: a prefix and 16 characters of a hash.
func kubeChain(prefix, key string) string {
	sum := sha256.Sum256([]byte(key))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// One service of two endpoints in kube-proxy's layout, rule by rule.
func TestKubeService(t *testing.T) {
	s := makeServices(1)[0]
	s.Endpoints = s.Endpoints[:2]
	var chains, rules bytes.Buffer
	kubeService(&chains, &rules, &s)
	const want = `:KUBE-SVC-QFOPPNRUG2ZTQZQX - [0:0]
:KUBE-SEP-ZUT55J4MC7CPPJI6 - [0:0]
:KUBE-SEP-QO2UY7S7RDO6FBBI - [0:0]
-A KUBE-SERVICES -m comment --comment "default/service-00000:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j KUBE-SVC-QFOPPNRUG2ZTQZQX
-A KUBE-SVC-QFOPPNRUG2ZTQZQX -m comment --comment "default/service-00000:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SVC-QFOPPNRUG2ZTQZQX -m comment --comment "default/service-00000:http -> 10.128.0.1:8080" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-ZUT55J4MC7CPPJI6
-A KUBE-SVC-QFOPPNRUG2ZTQZQX -m comment --comment "default/service-00000:http -> 10.128.0.2:8080" -j KUBE-SEP-QO2UY7S7RDO6FBBI
-A KUBE-SEP-ZUT55J4MC7CPPJI6 -m comment --comment default/service-00000:http -s 10.128.0.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-ZUT55J4MC7CPPJI6 -m comment --comment default/service-00000:http -m tcp -p tcp -j DNAT --to-destination 10.128.0.1:8080
-A KUBE-SEP-QO2UY7S7RDO6FBBI -m comment --comment default/service-00000:http -s 10.128.0.2 -j KUBE-MARK-MASQ
-A KUBE-SEP-QO2UY7S7RDO6FBBI -m comment --comment default/service-00000:http -m tcp -p tcp -j DNAT --to-destination 10.128.0.2:8080
`
	if got := chains.String() + rules.String(); got != want {
		t.Errorf("kube-proxy's layout\n got: %s\nwant: %s", got, want)
	}
}
