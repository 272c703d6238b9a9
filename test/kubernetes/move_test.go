//go:build netns

package kubernetes

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// synced is a metric that kube-proxy has after its first sync.
var synced = regexp.MustCompile(`kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv4"\} [1-9]`)

// startKubeProxy starts kube-proxy on the node, and waits for its first sync.
func (n *node) startKubeProxy(mode string) *netnstest.Process {
	n.t.Helper()
	p := n.start("kube-proxy", "--kubeconfig="+n.kubeconfig("admin", adminToken), "--proxy-mode="+mode, "--hostname-override=node",
		"--cluster-cidr=10.4.0.0/16", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	if err := n.awaitKubeProxy(10 * time.Minute); err != nil {
		n.t.Fatalf("%v\n%s", err, p.LogTail(3000))
	}
	return p
}

// awaitKubeProxy waits for the first sync of kube-proxy.
func (c *cluster) awaitKubeProxy(patience time.Duration) error {
	return pace.Poll(patience, func() error {
		time.Sleep(50 * time.Millisecond)
		code, body, err := c.node.Get("http://127.0.0.1:10249/metrics")
		if err == nil && (code != http.StatusOK || !synced.MatchString(body)) {
			err = fmt.Errorf("kube-proxy has not synced: %d", code)
		}
		return err
	})
}

// stopKubeProxy stops it as kubelet does, and removes its rules.
func (n *node) stopKubeProxy(p *netnstest.Process) {
	n.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	<-p.Ended()
	time.Sleep(settled)
	if out, err := n.lab.Node.Run(binary(n.t, "kube-proxy"), "--cleanup"); err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	if left := n.rulesOf("KUBE-SVC", "KUBE-SEP", "KUBE-MARK-MASQ", "table ip kube-proxy"); left != "" {
		n.t.Errorf("kube-proxy --cleanup leaves %s", left)
	}
}

// rulesOf returns which of some words stand in the rules of the node.
func (n *node) rulesOf(words ...string) string {
	n.t.Helper()
	nft, err := n.lab.Node.Run("nft", "list", "ruleset")
	if err != nil {
		n.t.Fatal(err)
	}
	legacy, _ := n.lab.Node.Run("iptables-legacy-save") // where there is such a program
	var found []string
	for _, w := range words {
		if strings.Contains(nft+legacy, w) {
			found = append(found, w)
		}
	}
	return strings.Join(found, ", ")
}

// settled is how long each state of a move is left alone.
const settled = 500 * time.Millisecond

// A node moves from kube-proxy to svcproxy by the steps of docs/kubernetes.md, and back, while
// connections are made all the time: none fails, and those that there are go on.
func testMove(t *testing.T, n *node, theirs, ours string) {
	n.putMoved()
	old := n.startKubeProxy(theirs)
	m := n.beginMove(t)

	n.startSvcproxy(t, ours, `["kubernetes"]`) // 1: beside kube-proxy, until it is ready
	m.settle("svcproxy beside kube-proxy")
	n.stopKubeProxy(old) // 2 and 3
	m.settle("kube-proxy is gone")

	young := n.startKubeProxy(theirs) // and back
	m.settle("kube-proxy beside svcproxy")
	if err := n.d.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, err := n.d.Command("cleanup"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m.settle("svcproxy is gone")
	t.Logf("%s to %s and back: %d connections, none failed", theirs, ours, m.end())
	n.stopKubeProxy(young)
	n.deleteService("web")
	n.deleteSlice("web-1")
}

// putMoved makes the service that is used while nodes move.
func (n *node) putMoved() {
	s := slice("web-1", "web", n.lab.Local[0], n.lab.Remote[0])
	s.Ports[0].Name = ptr("tcp")
	s.Ports = append(s.Ports, discovery.EndpointPort{Name: ptr("udp"), Port: ptr(int32(8080)), Protocol: ptr(core.ProtocolUDP)})
	n.put(s, service("web", "10.96.10.6", func(s *core.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = core.ServiceTypeNodePort, []string{"203.0.113.8"}
		s.Spec.Ports[0].Name, s.Spec.Ports[0].NodePort = "tcp", 30086
		s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: "udp", Protocol: core.ProtocolUDP, Port: 80, TargetPort: s.Spec.Ports[0].TargetPort, NodePort: 30087})
	}))
}

// A move is the traffic while one proxy takes over from another.
type move struct {
	t     *testing.T
	stops []func() int
	conn  *lab.Conn
	flow  *lab.Flow
}

func (n *node) beginMove(t *testing.T) *move {
	vip := tcp(n.lab.Client, "10.96.10.6:80")
	m := &move{t: t}
	for _, q := range []lab.Question{
		vip, tcp(n.lab.Client, "203.0.113.8:80"), tcp(n.lab.Client, lab.FrontAddr.V4.String()+":30086"),
		tcp(n.lab.Node, "10.96.10.6:80"), tcp(n.lab.Local[1], "10.96.10.6:80"),
	} {
		n.wants(t, q, "local1 remote1")
		m.stops = append(m.stops, ask(t, func() error { return atOnce(q) }))
	}
	vip.Patience = patience
	udp := vip
	udp.Protocol = source.UDP
	m.stops = append(m.stops, ask(t, func() error { return answered(udp) }))
	var answer lab.Answer
	if m.conn, answer = lab.Connect(vip); m.conn == nil {
		t.Fatal(answer)
	}
	var err error
	if m.flow, err = lab.NewFlow(udp, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close(); m.flow.Close() })
	m.settle("kube-proxy alone")
	return m
}

// atOnce makes a connection of which no packet is lost: one that succeeds when its
// first packet is sent again, after a second, was without a proxy for a while.
func atOnce(q lab.Question) error {
	q.Patience = patience
	conn, got := lab.Connect(q)
	if conn == nil || got.Outcome != lab.Answered {
		return fmt.Errorf("%s: %s", q, got)
	}
	defer conn.Close()
	if err := conn.SetLinger(0); err != nil { // no TIME_WAIT
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	again := uint32(0)
	err = raw.Control(func(fd uintptr) {
		if info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); e == nil {
			again = info.Total_retrans
		}
	})
	if again > 0 {
		return fmt.Errorf("%s: answered after %d packets were sent again", q, again)
	}
	return err
}

// settle leaves a state of the move alone, and sees that what there was goes on.
func (m *move) settle(when string) {
	m.t.Helper()
	time.Sleep(settled)
	if err := m.conn.Echo(patience); err != nil {
		m.t.Fatalf("%s: the connection that there was: %v", when, err)
	}
	if got := m.flow.Ask(); got.Outcome != lab.Answered {
		m.t.Fatalf("%s: the flow that there was: %s", when, got)
	}
}

// end returns how many connections were made.
func (m *move) end() int {
	count := 0
	for _, stop := range m.stops {
		count += stop()
	}
	return count
}
