//go:build !nokubernetes

package kubernetes

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Lists are streamed, or not where an API server is older: both give the same.
func TestFollowStreamsOrLists(t *testing.T) {
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streams %v", streams), func(t *testing.T) {
			a := startAPIServer(t, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1", "10.0.0.2"), eps("orphan", "none", "10.0.0.9"),
				svc("headless", "None"), svc("other", "10.96.0.7", func(s *core.Service) { s.Labels = map[string]string{labelProxyName: "else"} }))
			a.streams = streams
			r := run(t, at(a))
			r.wants("default/a 10.0.0.1 10.0.0.2")
			if h := r.history(0); len(h) != 1 {
				t.Errorf("%d steps, want one with all there is: %q", len(h), h)
			}
			a.put(svc("b", "10.96.0.2"), eps("b-1", "b", "10.0.0.3!"))
			r.wants("default/a 10.0.0.1 10.0.0.2; default/b 10.0.0.3!")
			a.put(eps("b-1", "b", "10.0.0.3"), svc("none", "10.96.0.3"))
			r.wants("default/a 10.0.0.1 10.0.0.2; default/b 10.0.0.3; default/none 10.0.0.9")
			a.put(svc("a", "10.96.0.1", func(s *core.Service) { s.Spec.Type = core.ServiceTypeExternalName }))
			a.delete(svc("none", "10.96.0.3"))
			r.wants("default/b 10.0.0.3")
			a.put(svc("a", "10.96.0.1"))
			r.wants("default/a 10.0.0.1 10.0.0.2; default/b 10.0.0.3")
		})
	}
}

func TestProxyName(t *testing.T) {
	ours := func(s *core.Service) { s.Labels = map[string]string{labelProxyName: "mine"} }
	a := startAPIServer(t, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1"), svc("b", "10.96.0.2", ours), eps("b-1", "b", "10.0.0.2"))
	o := at(a)
	o.ProxyName = "mine"
	run(t, o).wants("default/b 10.0.0.2")
}

// A slice is of its service whatever it says of a proxy: its labels follow those of the service late.
func TestLabelsOfSlices(t *testing.T) {
	late := eps("a-1", "a", "10.0.0.1")
	late.Labels[labelProxyName] = "else"
	a := startAPIServer(t, svc("a", "10.96.0.1"), late)
	run(t, at(a)).wants("default/a 10.0.0.1")
}

// Nothing is handed on before all kinds have been listed.
func TestNothingIsHandedOnBeforeAllIsListed(t *testing.T) {
	for _, slow := range []string{"services", "endpointslices", "nodes"} {
		t.Run(slow, func(t *testing.T) {
			a := startAPIServer(t, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1"))
			release := a.hold(slow)
			defer release()
			r := run(t, at(a))
			r.eventually("listed the others", func() bool { return a.answered() == 2 })
			time.Sleep(50 * time.Millisecond)
			if h := r.history(0); len(h) != 0 || r.src.Status().Synced {
				t.Errorf("handed on %q before %s were listed", h, slow)
			}
			release()
			r.wants("default/a 10.0.0.1")
			r.syncedAfter(1)
		})
	}
}

// What is said while no watch runs is heard afterwards, and nothing is lost meanwhile.
func TestFaultsOfConnection(t *testing.T) {
	before := "default/a 10.0.0.1; default/b 10.0.0.2"
	after := "default/a 10.0.0.1 10.0.0.3; default/c"
	change := func(a *apiServer) {
		a.put(eps("a-1", "a", "10.0.0.1", "10.0.0.3"), svc("c", "10.96.0.3"))
		a.delete(svc("b", "10.96.0.2"), eps("b-1", "b", "10.0.0.2"))
	}
	away := func(a *apiServer, r *running, meanwhile func()) {
		a.stop()
		r.connected(false)
		conn := r.src.Status().Connection
		if conn.Error == "" || pace.Over(conn.Since, within) {
			t.Errorf("connection %+v", conn)
		}
		meanwhile()
		time.Sleep(time.Second)
		if r.look() != before {
			t.Errorf("have %q while the server is away, want %q", r.look(), before)
		}
		a.start()
	}
	tests := []struct {
		name  string
		fault func(a *apiServer, r *running)
		again bool // everything has to be listed again
	}{
		{"watch cut", func(a *apiServer, _ *running) { a.cut(); change(a) }, false},
		{"410 gone", func(a *apiServer, _ *running) { change(a); a.compact(); a.cut() }, true},
		{"410 in a watch", func(a *apiServer, _ *running) { a.compact(); change(a) }, true},
		{"away and back", func(a *apiServer, r *running) { away(a, r, func() { change(a) }) }, false},
		{"away, and back compacted", func(a *apiServer, r *running) { away(a, r, func() { change(a); a.compact() }) }, true},
		{"slow when back", func(a *apiServer, r *running) {
			away(a, r, func() { change(a); a.compact(); time.AfterFunc(3*time.Second, a.hold("services")) })
		}, true},
	}
	for _, tt := range tests {
		for _, streams := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, streams %v", tt.name, streams), func(t *testing.T) {
				t.Parallel()
				a := startAPIServer(t, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1"), svc("b", "10.96.0.2"), eps("b-1", "b", "10.0.0.2"))
				a.streams = streams
				r := run(t, at(a))
				r.wants(before)
				r.connected(true)
				lists, steps := a.answered(), len(r.history(0))
				tt.fault(a, r)
				r.wants(after)
				r.connected(true)
				if tt.again {
					r.eventually("listed again", func() bool { return a.answered() > lists })
				}
				for _, h := range r.history(steps) {
					if !strings.HasPrefix(h, "default/a 10.0.0.1") {
						t.Errorf("lost what never went: %q", h)
					}
				}
			})
		}
	}
}

// The server is away when we start.
func TestStartWithoutServer(t *testing.T) {
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	a.stop()
	r := run(t, at(a))
	r.eventually("failed", func() bool { return strings.Contains(r.src.Status().Connection.Error, "refused") })
	a.start()
	r.wants("default/a")
	r.connected(true)
}

// kubeconfigText is a kubeconfig beside a file ca.pem, for an address and a token.
const kubeconfigText = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
	"clusters: [{name: c, cluster: {server: 'https://%s', certificate-authority: ca.pem}}]\nusers: [{name: u, user: {token: %s}}]\n"

// Certificate and token change: what says so is read again, and until it is right
// services stay.
func TestChangedIdentityIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, text []byte) {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	cert, ca := authority(t, a.addr)
	a.stop()
	a.tls, a.token = &tls.Config{Certificates: []tls.Certificate{cert}}, "one"
	a.start()
	kubeconfig := func(token string) []byte { return fmt.Appendf(nil, kubeconfigText, a.addr, token) }
	write("ca.pem", ca)
	write("config", kubeconfig("one"))
	r := run(t, Options{Kubeconfig: filepath.Join(dir, "config"), NodeName: "here"})
	r.wants("default/a")
	r.connected(true)

	a.mu.Lock()
	a.token = "two"
	a.mu.Unlock()
	a.cut()
	r.connected(false)
	a.put(svc("b", "10.96.0.2"))
	write("config", nil) // as for a moment while it is written
	write("config", kubeconfig("two"))
	r.wants("default/a; default/b")
	r.connected(true)

	a.stop()
	cert, ca = authority(t, a.addr)
	a.tls = &tls.Config{Certificates: []tls.Certificate{cert}}
	a.start()
	r.eventually("distrust", func() bool { return strings.Contains(r.src.Status().Connection.Error, "x509") })
	a.put(svc("c", "10.96.0.3"))
	write("ca.pem", ca)
	r.wants("default/a; default/b; default/c")
	for _, h := range r.history(0) {
		if !strings.HasPrefix(h, "default/a") {
			t.Errorf("lost what never went: %q", h)
		}
	}
}

// A token in a file of its own is read again for each request.
func TestTokenFileChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	cert, ca := authority(t, a.addr)
	a.stop()
	a.tls, a.token = &tls.Config{Certificates: []tls.Certificate{cert}}, "one"
	a.start()
	write("ca.pem", string(ca))
	write("token", "one\n")
	write("config", strings.Replace(fmt.Sprintf(kubeconfigText, a.addr, "token"), "{token:", "{tokenFile:", 1))
	r := run(t, Options{Kubeconfig: filepath.Join(dir, "config"), NodeName: "here"})
	r.wants("default/a")
	r.connected(true)
	a.mu.Lock()
	a.token = "two"
	a.mu.Unlock()
	a.cut()
	r.connected(false)
	a.put(svc("b", "10.96.0.2"))
	write("token", "") // as for a moment while it is written
	time.Sleep(100 * time.Millisecond)
	write("token", "two\n")
	r.wants("default/a; default/b")
	r.connected(true)
}

func TestNoServerNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	r := run(t, Options{NodeName: "here"})
	r.eventually("said", func() bool { return strings.Contains(r.src.Status().Connection.Error, "no API server is named") })
}

// An endpoint that moves from slice to slice never goes, in whatever order the
// slices change. One that is removed goes after remote.MoveTime, one that was not ready at once.
func TestMovedEndpointIsNeverAbsent(t *testing.T) {
	a := startAPIServer(t, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1", "10.0.0.2"), eps("a-2", "a", "10.0.0.3"))
	r := run(t, at(a))
	r.wants("default/a 10.0.0.1 10.0.0.2 10.0.0.3")
	steps := len(r.history(0))

	a.put(eps("a-1", "a", "10.0.0.1")) // gone here first
	a.put(eps("a-2", "a", "10.0.0.2", "10.0.0.3"))
	a.put(eps("a-3", "a", "10.0.0.1", "10.0.0.4")) // there first
	r.wants("default/a 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4")
	a.delete(eps("a-1", "a"))
	a.put(svc("b", "10.96.0.2"))
	r.wants("default/a 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4; default/b")
	for _, h := range r.history(steps) {
		if !strings.HasPrefix(h, "default/a 10.0.0.1 10.0.0.2 10.0.0.3") {
			t.Errorf("gap: %q", h)
		}
	}

	begin := time.Now()
	a.put(eps("a-2", "a", "10.0.0.2"))
	r.wants("default/a 10.0.0.1 10.0.0.2 10.0.0.4; default/b")
	if took := time.Since(begin); took < remote.MoveTime*9/10 {
		t.Errorf("an endpoint that was ready went after %v", took)
	}
	a.put(eps("a-2", "a", "10.0.0.2!"))
	r.wants("default/a 10.0.0.1 10.0.0.2! 10.0.0.4; default/b")
	begin = time.Now()
	a.put(eps("a-2", "a"))
	r.wants("default/a 10.0.0.1 10.0.0.4; default/b")
	if took := time.Since(begin); took > pace.Scale(remote.MoveTime*9/10) {
		t.Errorf("an endpoint that was not ready went after %v", took)
	}
}

// A slice may be given to another service.
func TestSliceChangesService(t *testing.T) {
	a := startAPIServer(t, svc("a", "10.96.0.1"), svc("b", "10.96.0.2"), eps("x", "a", "10.0.0.1"))
	r := run(t, at(a))
	r.wants("default/a 10.0.0.1; default/b")
	a.put(eps("x", "b", "10.0.0.1"))
	r.wants("default/a; default/b 10.0.0.1")
}

// A service that cannot be used stays as it was, and status says so until it is repaired.
func TestBrokenObjectKeepsItsService(t *testing.T) {
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	r := run(t, at(a))
	r.wants("default/a")
	a.put(svc("a", "10.96.0.2", func(s *core.Service) { s.Spec.Ports = append(s.Spec.Ports, s.Spec.Ports[0]) }))
	r.eventually("stale", func() bool { return len(r.src.Status().Objects) == 1 })
	o := r.src.Status().Objects[0]
	if o.Path != "default/a" || o.State != source.Stale || len(o.Faults) == 0 {
		t.Errorf("object %+v", o)
	}
	vip := func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.now["default/a"].VIPs[0].String()
	}
	if vip() != "10.96.0.1" {
		t.Errorf("the broken service is used: VIP %s", vip())
	}
	a.put(svc("a", "10.96.0.2"))
	r.eventually("repaired", func() bool { return len(r.src.Status().Objects) == 0 && vip() == "10.96.0.2" })
}

func TestNodeIsFollowed(t *testing.T) {
	n := &core.Node{ObjectMeta: meta.ObjectMeta{Name: "here", Labels: map[string]string{core.LabelTopologyZone: "z"}}}
	other := &core.Node{ObjectMeta: meta.ObjectMeta{Name: "there", Labels: map[string]string{core.LabelTopologyZone: "y"}}}
	a := startAPIServer(t, n, other)
	r := run(t, at(a))
	zone := func(want string) func() bool {
		return func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.node == nil {
				return want == "none"
			}
			return r.node.Zone == want
		}
	}
	r.eventually("synced", func() bool { return r.src.Status().Synced })
	if !zone("z")() {
		t.Errorf("node %+v at first sync", r.node)
	}
	n.Labels[core.LabelTopologyZone] = "x"
	a.put(n)
	r.eventually("zone x", zone("x"))
	a.delete(n)
	r.eventually("none", zone("none"))
}

// The end is no error to a reflector: it would leave its watch open.
func TestStoreAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := serviceStore(ctx, make(chan step)) // that nobody reads
	a := svc("a", "10.96.0.1")
	for what, err := range map[string]error{"replace": f.Replace([]any{a}, "1"), "add": f.Add(a), "delete": f.Delete(a)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
