//go:build netns

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/kubernetes/programs"
	"svcproxy.dev/svcproxy/test/lab"
)

var svcproxyBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	dir, err := netnstest.TempDir()
	if err == nil {
		defer os.RemoveAll(dir)
		svcproxyBinary, err = programs.Svcproxy(".", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// A node is a lab with a cluster, and svcproxy in one mode.
type node struct {
	*cluster
	lab *lab.Lab
	d   *lab.Daemon
}

// newNode starts all but svcproxy.
func newNode(t *testing.T) *node {
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &node{cluster: startCluster(t, l.Node), lab: l}
}

// startSvcproxy starts it in a mode, as the service account of configs/kubernetes.
func (n *node) startSvcproxy(t *testing.T, mode, sources string) {
	t.Helper()
	d, err := lab.NewDaemon(n.lab, svcproxyBinary)
	if err != nil {
		t.Fatal(err)
	}
	n.d = d
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of svcproxy:\n%s", d.LogTail(40))
		}
		var err error
		if d.Running() {
			err = d.Stop()
		}
		_, cleanupErr := d.Command("cleanup")
		if err := errors.Join(err, cleanupErr, d.Remove()); err != nil {
			t.Error(err)
		}
	})
	settings := fmt.Sprintf("mode = %q\nsources = %s\nnode_name = \"node\"\n[kubernetes]\nkubeconfig = %q\n", mode, sources, n.kubeconfig("svcproxy", svcproxyToken))
	if err := errors.Join(d.Settings(settings), d.Start()); err != nil {
		t.Fatalf("%v\n%s", err, d.LogTail(40))
	}
}

func tcp(from *lab.Host, to string) lab.Question {
	return lab.Question{From: from, Protocol: source.TCP, To: netip.MustParseAddrPort(to)}
}

// wants waits until a question is answered by one of hosts, or has this outcome.
func (n *node) wants(t *testing.T, q lab.Question, what string) {
	t.Helper()
	err := pace.Poll(patience, func() error {
		got := lab.Ask(q)
		if got.Outcome.String() == what || got.Outcome == lab.Answered && strings.Contains(what, got.By) {
			return nil
		}
		return fmt.Errorf("%s: %s, want %s", q, got, what)
	})
	if err != nil {
		t.Error(err)
	}
}

// connection returns what svcproxy says of its connection.
func (n *node) connection() (source.Connection, error) {
	text, err := n.d.Command("status", "-o", "json")
	if err != nil {
		return source.Connection{}, err
	}
	var st struct{ Sources []source.Status }
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		return source.Connection{}, err
	}
	for _, s := range st.Sources {
		if s.Connection != nil {
			return *s.Connection, nil
		}
	}
	return source.Connection{}, errors.New("no source has a connection")
}

func thisNode() *core.Node {
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: "node", Labels: map[string]string{core.LabelTopologyZone: "z"}},
		Spec:       core.NodeSpec{PodCIDRs: []string{"10.4.0.0/16"}, PodCIDR: "10.4.0.0/16"},
		Status: core.NodeStatus{Addresses: []core.NodeAddress{
			{Type: core.NodeInternalIP, Address: lab.FrontAddr.V4.String()},
		}},
	}
}

func TestKubernetes(t *testing.T) {
	n := newNode(t)
	n.example("rbac.yaml")
	for _, m := range n.example("daemonset.yaml") {
		if _, faults := configs.Parse("svcproxy.toml", []byte(m.Data["svcproxy.toml"])); len(faults) > 0 {
			t.Errorf("settings of daemonset.yaml: %v", faults)
		}
	}
	n.put(thisNode())
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			n.startSvcproxy(t, mode, `["kubernetes"]`)
			t.Run("objects", func(t *testing.T) { testObjects(t, n) })
			t.Run("outage", func(t *testing.T) { testOutage(t, n) })
		})
	}
	for _, modes := range [][2]string{{"nftables", "nftables"}, {"iptables", "nftables"}, {"iptables", "iptables"}} {
		t.Run("move from "+modes[0]+" to "+modes[1], func(t *testing.T) { testMove(t, n, modes[0], modes[1]) })
	}
	t.Run("files and cluster", func(t *testing.T) { testFilesAndCluster(t, n) })
}

// Services, slices and what they say come to the kernel.
func testObjects(t *testing.T, n *node) {
	local, remote := n.lab.Local, n.lab.Remote
	web := tcp(n.lab.Client, "10.96.10.1:80") // in the ServiceCIDR that the API server makes
	n.wants(t, web, "refused")
	n.put(service("web", "10.96.10.1"))
	n.wants(t, web, "refused")
	n.put(slice("web-1", "web", local[0]), slice("web-2", "web", remote[0]))
	n.wants(t, web, "local1")
	n.wants(t, web, "remote1")
	n.put(slice("web-2", "web", remote[1]), slice("web-1", "web"))
	n.wants(t, web, "remote2")

	n.put(service("web", "10.96.10.1", func(s *core.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = core.ServiceTypeNodePort, 30080
		s.Spec.ExternalIPs = []string{"203.0.113.7"}
		s.Spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicyLocal
	}))
	n.wants(t, tcp(n.lab.Client, "203.0.113.7:80"), "dropped") // no endpoint here
	n.put(slice("web-1", "web", local[1]))
	n.wants(t, tcp(n.lab.Client, "203.0.113.7:80"), "local2")
	n.wants(t, tcp(n.lab.Client, lab.FrontAddr.V4.String()+":30080"), "local2") // the InternalIP of the node object
	n.wants(t, tcp(n.lab.Client, lab.UplinkAddr.V4.String()+":30080"), "refused")

	n.deleteSlice("web-1")
	n.deleteSlice("web-2")
	n.wants(t, web, "refused")
	n.deleteService("web")
	n.wants(t, web, "refused")
}

// outage is for how long the API server is away.
const outage = time.Minute

// While the API server is away nothing changes; when it is back, svcproxy is in
// step with what changed meanwhile.
func testOutage(t *testing.T, n *node) {
	n.put(service("stays", "10.96.10.2"), slice("stays-1", "stays", n.lab.Local[0]),
		service("goes", "10.96.10.3"), slice("goes-1", "goes", n.lab.Local[1]))
	stays, goes, comes := tcp(n.lab.Client, "10.96.10.2:80"), tcp(n.lab.Client, "10.96.10.3:80"), tcp(n.lab.Client, "10.96.10.4:80")
	n.wants(t, stays, "local1")
	n.wants(t, goes, "local2")
	stop := ask(t, func() error { return answered(stays) })
	begin := time.Now()
	n.stopAPI()
	n.startAPI(elsewhere)
	n.put(service("comes", "10.96.10.4"), slice("comes-1", "comes", n.lab.Remote[0]), slice("stays-1", "stays", n.lab.Local[0], n.lab.Remote[2]))
	n.deleteService("goes")
	n.deleteSlice("goes-1")
	conn, err := n.connection()
	if err != nil || conn.Connected || time.Since(conn.Since) > time.Since(begin) {
		t.Errorf("connection while the server is away: %+v, %v", conn, err)
	}
	time.Sleep(time.Until(begin.Add(outage)))
	n.wants(t, goes, "local2")
	n.wants(t, comes, "refused")
	n.stopAPI()
	n.startAPI(usual)
	back := time.Now()
	n.wants(t, comes, "remote1")
	n.wants(t, stays, "remote3")
	n.wants(t, goes, "refused")
	t.Logf("in step %v after the API server was ready; %d connections made all the while", time.Since(back).Round(time.Millisecond), stop())
	// An API server that has just started may not know yet who may watch what.
	err = pace.Poll(patience, func() error {
		conn, err := n.connection()
		if err == nil && !conn.Connected {
			err = fmt.Errorf("connection afterwards: %+v", conn)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"stays", "comes"} {
		n.deleteService(name)
		n.deleteSlice(name + "-1")
	}
	n.wants(t, comes, "refused")
}

// ask tries something over and over, which must always succeed. stop says how often it was.
func ask(t *testing.T, try func() error) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		for ; ctx.Err() == nil; asked++ {
			if err := try(); err != nil {
				t.Errorf("connection %d: %v", asked, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		return asked
	}
}

// answered makes a connection. Without its rules the service would be refused or
// untouched, which is told at once. An answer may take its time while an API server
// starts beside it.
func answered(q lab.Question) error {
	q.Patience = patience
	if got := lab.Ask(q); got.Outcome != lab.Answered {
		return fmt.Errorf("%s: %s", q, got)
	}
	return nil
}

// A file takes an address from an object, and gives it back.
func testFilesAndCluster(t *testing.T, n *node) {
	n.startSvcproxy(t, "nftables", `["file", "kubernetes"]`)
	n.put(service("web", "10.96.10.5"), slice("web-1", "web", n.lab.Remote[0]))
	q := tcp(n.lab.Client, "10.96.10.5:80")
	n.wants(t, q, "remote1")
	text := fmt.Sprintf("[[services]]\nname = \"mine\"\nvips = [\"10.96.10.5\"]\nports = [{ port = 80, target_port = 8080 }]\nendpoints = [%q]\n",
		n.lab.Local[2].Addr().V4)
	if err := n.d.WriteFile("mine.toml", text); err != nil {
		t.Fatal(err)
	}
	n.wants(t, q, "local3")
	status, err := n.d.Command("status")
	if err != nil || !strings.Contains(status, "default/web") || !strings.Contains(status, "10.96.10.5:80/tcp is taken by") {
		t.Errorf("status does not tell who lost: %v\n%s", err, status)
	}
	if err := n.d.RemoveFile("mine.toml"); err != nil {
		t.Fatal(err)
	}
	n.wants(t, q, "remote1")
}
