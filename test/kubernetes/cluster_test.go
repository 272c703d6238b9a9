//go:build netns

package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// Tokens of who may use the API server.
const (
	adminToken    = "admin-token"
	svcproxyToken = "svcproxy-token"
)

// usual is where svcproxy looks for the API server; elsewhere is where only tests find it.
const (
	usual     = 6443
	elsewhere = 7443
)

// patience is five times what a change may take that is promised within seconds.
const patience = 30 * time.Second

// A cluster is etcd and an API server on the node of a lab, under its loopback address.
type cluster struct {
	t      testing.TB
	node   *lab.Host
	dir    string
	etcd   *netnstest.Process
	api    *netnstest.Process // nil: none runs
	client *kubernetes.Clientset
}

func startCluster(t testing.TB, node *lab.Host) *cluster {
	c := &cluster{t: t, node: node, dir: t.TempDir()}
	c.writeFiles()
	c.etcd = c.start("etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380")
	c.startAPI(usual)
	return c
}

// writeFiles makes what the API server is started with.
func (c *cluster) writeFiles() {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	c.write("tokens.csv", fmt.Appendf(nil, "%s,admin,1,system:masters\n%s,system:serviceaccount:kube-system:svcproxy,2,system:serviceaccounts\n",
		adminToken, svcproxyToken))
}

func (c *cluster) write(name string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// start starts a program on the node, and has it killed when the test ends.
func (c *cluster) start(name string, args ...string) *netnstest.Process {
	c.t.Helper()
	p, err := c.node.Launch(exec.Command(binary(c.t, name), args...), c.path(name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = p.Kill() })
	return p
}

// startAPI starts the API server under a port and waits until it is ready.
func (c *cluster) startAPI(port int) {
	c.t.Helper()
	c.api = c.start("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--advertise-address="+lab.UplinkAddr.V4.String(),
		"--cert-dir="+c.path("certs"), "--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged", "--enable-priority-and-fairness=false",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/108",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("key.pem"), "--service-account-signing-key-file="+c.path("key.pem"),
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://127.0.0.1:" + strconv.Itoa(port), BearerToken: adminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: c.dial, Timeout: 2 * time.Minute,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.client = client
	err = pace.Poll(2*time.Minute, func() error { // 10 s on an idle host
		if _, err := client.CoreV1().Namespaces().Get(context.Background(), "default", meta.GetOptions{}); err != nil {
			return err
		}
		return client.RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
	})
	if err != nil {
		c.t.Fatalf("the API server is not ready: %v", err)
	}
}

// dial connects from the node.
func (c *cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.node.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// stopAPI kills the API server.
func (c *cluster) stopAPI() { _ = c.api.Kill() }

// kubeconfig writes one for a user and returns its path.
func (c *cluster) kubeconfig(user, token string) string {
	c.t.Helper()
	name := "kubeconfig-" + user
	c.write(name, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: %[2]s}}]
clusters: [{name: lab, cluster: {server: 'https://127.0.0.1:%[1]d', certificate-authority: certs/apiserver.crt}}]
users: [{name: %[2]s, user: {token: %[3]s}}]
`, usual, user, token))
	return c.path(name)
}
