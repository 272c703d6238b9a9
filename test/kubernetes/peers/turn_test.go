//go:build netns

package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// A turn is one round of one program: a network, a server and the program in it.
type turn struct {
	t    testing.TB
	plan *plan
	mode string
	size size
	peer string

	lab    *lab.Lab
	dir    string
	all    []service
	server *server
	proc   *process
	spare  int // which spare range the last change took

	rests    bool // memory at rest is measured
	restarts bool // the restart is
}

// newTurn makes a network of its own for one program, which is removed with the test.
func newTurn(t testing.TB, p *plan, mode string, s size, peer string) (*turn, error) {
	n := &turn{t: t, plan: p, mode: mode, size: s, peer: peer, all: makeServices(s)}
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	n.lab = l
	t.Cleanup(n.close)
	if n.dir, err = netnstest.TempDir(); err != nil {
		return nil, err
	}
	if n.server, err = newServer(n.all); err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // else garbage is collected while the program starts
	return n, cmp.Or(n.routeEndpoints(), n.addForeignRules(), n.linkTools(), n.serve(), n.configure())
}

func (n *turn) close() {
	if n.proc != nil {
		n.proc.kill()
	}
	if n.t.Failed() {
		n.t.Logf("log of %s:\n%s", n.peer, n.logTail())
	}
	if err := errors.Join(n.lab.Close(), os.RemoveAll(n.dir)); err != nil {
		n.t.Error(err)
	}
}

func (n *turn) path(name string) string { return filepath.Join(n.dir, name) }

func (n *turn) logTail() string {
	if n.proc == nil {
		return "it was not started"
	}
	return n.proc.LogTail(3000)
}

// routeEndpoints makes a host answer for all endpoints of each range.
func (n *turn) routeEndpoints() error {
	for i, all := range append(spareRanges[:len(spareRanges):len(spareRanges)], endpointRange) {
		host := n.host(i)
		if _, err := host.Run("ip", "route", "add", "local", all.String(), "dev", "lo"); err != nil {
			return err
		}
		if _, err := n.lab.Node.Run("ip", "route", "add", all.String(), "via", host.Addr().V4.String(), "dev", host.Role); err != nil {
			return err
		}
	}
	return nil
}

// host answers for endpoints of the i-th spare range; the last one for those of the beginning.
func (n *turn) host(i int) *lab.Host { return n.lab.Local[i] }

// addForeignRules adds rules that match everything and do nothing: svcproxy stays with
// the variant of iptables in which others have rules.
func (n *turn) addForeignRules() error {
	_, variant, ok := strings.Cut(n.mode, "-")
	if !ok {
		return nil
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		if _, err := n.lab.Node.Run(family+"-"+variant, "-w", "-A", "INPUT", "-m", "comment", "--comment", "of another program"); err != nil {
			return err
		}
	}
	return nil
}

// linkTools names the tools of the variant as kube-proxy calls them, in the folder bin.
func (n *turn) linkTools() error {
	if err := os.Mkdir(n.path("bin"), 0o755); err != nil {
		return err
	}
	_, variant, ok := strings.Cut(n.mode, "-")
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			if !ok {
				continue
			}
			tool, err := exec.LookPath(family + "-" + variant + what)
			if err == nil {
				err = os.Symlink(tool, n.path("bin/"+family+what))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

const serverAddr = "127.0.0.1:6443"

// serve has the server answer on the node.
func (n *turn) serve() (err error) {
	var l net.Listener
	err = n.lab.Node.Do(func() error {
		l, err = net.Listen("tcp", serverAddr)
		return err
	})
	if err != nil {
		return fmt.Errorf("listening for watches: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{Handler: n.server, BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	go func() {
		_ = s.Serve(l)
		close(done)
	}()
	n.t.Cleanup(func() {
		cancel()
		_ = s.Close()
		<-done
	})
	return nil
}

// configure writes what programs are started with.
func (n *turn) configure() error {
	for _, sub := range []string{"config", "state", "run"} {
		if err := os.Mkdir(n.path(sub), 0o755); err != nil {
			return err
		}
	}
	err := os.WriteFile(n.path("kubeconfig"), []byte(`apiVersion: v1
kind: Config
current-context: peers
contexts: [{name: peers, context: {cluster: peers, user: ""}}]
clusters: [{name: peers, cluster: {server: 'http://`+serverAddr+`'}}]
`), 0o644)
	if err != nil {
		return err
	}
	mode, sources := "nftables", "kubernetes"
	if n.mode != nftables {
		mode = "iptables"
	}
	if n.peer == oursFiles {
		sources = "file"
	}
	settings := fmt.Sprintf(`mode = %q
sources = [%q]
node_name = %q
local_cidrs = [%q]

[sync]
resync_interval = "1h"

[kubernetes]
kubeconfig = %q
`, mode, sources, nodeName, podRange, n.path("kubeconfig"))
	if err := os.WriteFile(n.path("config/svcproxy.toml"), []byte(settings), 0o644); err != nil || n.peer != oursFiles {
		return err
	}
	for i := 0; i < len(n.all); i += perFile {
		rename, err := n.writeFile(i)
		if err != nil {
			return err
		}
		if err := rename(); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes the file of the i-th service beside its place, and returns what puts it there.
func (n *turn) writeFile(i int) (rename func() error, err error) {
	name, text, err := fileOf(n.all, i)
	if err != nil {
		return nil, err
	}
	fresh := n.path("config/." + name) // names with a dot are not read
	return func() error { return os.Rename(fresh, n.path("config/"+name)) }, os.WriteFile(fresh, []byte(text), 0o644)
}

// start starts the program.
func (n *turn) start() (err error) {
	program := programPaths[programOf(n.peer)]
	if n.peer == theirs {
		mode, _, _ := strings.Cut(n.mode, "-")
		cmd := exec.Command(program, "--kubeconfig="+n.path("kubeconfig"), "--proxy-mode="+mode, "--hostname-override="+nodeName,
			"--cluster-cidr="+podRange, "--iptables-sync-period=1h", "--iptables-min-sync-period=0s",
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
		cmd.Env = append(os.Environ(), "PATH="+n.path("bin")+":"+os.Getenv("PATH"))
		n.proc, err = startProcess(n.lab.Node, cmd, n.path("log"), "http://127.0.0.1:10249/metrics", "kubeproxy")
		return err
	}
	cmd := exec.Command(program, "run", "--config-dir", n.path("config"), "--state-dir", n.path("state"), "--run-dir", n.path("run"))
	n.proc, err = startProcess(n.lab.Node, cmd, n.path("log"), "http://127.0.0.1:10349/metrics", "svcproxy")
	return err
}

// change gives services other endpoints, the first count of each, tells the program of
// it, and returns when it began to.
func (n *turn) change(count int, indexes ...int) (begin time.Time, err error) {
	var changed []*service
	for _, i := range indexes {
		n.all[i].move(count, n.spare)
		changed = append(changed, &n.all[i])
	}
	if n.peer != oursFiles {
		return n.server.change(changed...)
	}
	var renames []func() error
	for at, i := range indexes {
		if at > 0 && i/perFile == indexes[at-1]/perFile {
			continue
		}
		rename, err := n.writeFile(i)
		if err != nil {
			return begin, err
		}
		renames = append(renames, rename)
	}
	begin = time.Now()
	for _, rename := range renames {
		err = cmp.Or(err, rename())
	}
	return begin, err
}

// ask returns an error unless a service answers, by a host of whatever role where that is "".
func (n *turn) ask(i int, role string) error {
	q := lab.Question{From: n.lab.Node, Protocol: source.TCP, To: n.all[i].address(), Patience: lab.ConnectPatience}
	got := lab.Ask(q)
	if got.Outcome != lab.Answered || role != "" && got.By != role {
		return fmt.Errorf("%s: %s", q, got)
	}
	return nil
}
