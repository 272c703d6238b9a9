package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// A fakeCluster is a source that hands on what a test tells it to.
type fakeCluster struct {
	h     *node.Host
	steps chan func(source.Sink)
}

func (f *fakeCluster) Run(ctx context.Context, sink source.Sink) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-f.steps:
			do(sink)
		}
	}
}

func (f *fakeCluster) Status() source.Status {
	return source.Status{Source: kubernetesName, Connection: &source.Connection{Connected: true, Since: time.Unix(7, 0)}}
}

// kubernetesName is what the fake is called: what settings can ask for.
const kubernetesName = "kubernetes"

// withSources has the next daemons know files, and these sources.
func withSources(t *testing.T, more ...sources.Type) {
	old := sources.Types
	files := slices.IndexFunc(old, func(s sources.Type) bool { return s.Name == file.Name })
	sources.Types = append([]sources.Type{old[files]}, more...)
	t.Cleanup(func() { sources.Types = old })
}

// withCluster makes f the cluster of the next daemon.
func withCluster(t *testing.T) *fakeCluster {
	f := &fakeCluster{steps: make(chan func(source.Sink))}
	open := func(c sources.Config) source.Source { f.h = c.Host; return f }
	withSources(t, sources.Type{Name: kubernetesName, Precedence: 20, Open: open, Remote: true, Eligibility: true})
	return f
}

func object(name string, vip string) source.Changes {
	return source.Changes{Set: []source.Unit{{
		ID: source.UnitID{Source: kubernetesName, Name: "default/" + name}, Partial: true, Since: 1,
		Services: []*source.Service{{
			Key: source.Key{Namespace: "default", Name: name}, VIPs: []netip.Addr{netip.MustParseAddr(vip)},
			Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}},
		}},
	}}}
}

// get returns status and body of a path on http_address, which is not listened on from
// the first: that it refuses is not yet an answer.
func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	var resp *http.Response
	var err error
	pace.Within(20*time.Second, func() bool {
		resp, err = http.Get("http://" + addr + path)
		return !errors.Is(err, syscall.ECONNREFUSED)
	})
	fatal.If(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fatal.If(t, err)
	return resp.StatusCode, string(body)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Files win, whichever came first, and status shows the object that lost.
func TestFilesAndCluster(t *testing.T) {
	f := withCluster(t)
	addr := freePort(t)
	r := launch(t, "http_address = \""+addr+"\"\nsources = [\"file\", \"kubernetes\"]\n")
	time.Sleep(50 * time.Millisecond)
	if names, _, _ := r.kernel.seen(); names != "" {
		t.Errorf("kernel holds %q before the cluster is synced", names)
	}
	f.steps <- func(s source.Sink) {
		s.Apply(object("web", "10.96.0.77"))
		s.Apply(object("other", "10.96.0.78"))
		s.Synced(kubernetesName)
	}
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/other default/web" {
		t.Errorf("kernel holds %q", names)
	}
	f.steps <- func(source.Sink) { f.h.Joined(nil) } // a host beside the cluster
	if code, body := get(t, addr, "/healthz"); code != 200 {
		t.Errorf("/healthz: %d %s", code, body)
	}
	st := r.status()
	if len(st.Sources) != 2 || len(st.Sources[1].Objects) != 1 || len(st.Sources[0].Files[0].Faults) != 0 {
		t.Fatalf("sources %+v", st.Sources)
	}
	o := st.Sources[1].Objects[0]
	if o.Path != "default/web" || o.State != source.Refused || !strings.Contains(o.Faults[0].Msg, "web.toml:2:8") {
		t.Errorf("object %+v", o)
	}
	if _, body := get(t, addr, "/metrics"); !strings.Contains(body, `svcproxy_source_trouble{kind="watch",source="file"} 0`) {
		t.Errorf("metrics do not tell of files:\n%s", body)
	}
	if _, body := get(t, addr, "/metrics"); !strings.Contains(body, `svcproxy_source_connected{source="kubernetes"} 1`) ||
		!strings.Contains(body, `svcproxy_source_connection_changed_timestamp_seconds{source="kubernetes"} 7`) {
		t.Errorf("metrics do not tell of the connection:\n%s", body)
	}
	r.write("web.toml", "services = []\n")
	r.eventually("object used", func() bool { return len(r.status().Sources[1].Objects) == 0 })
}

// Without the source "file", files are not read. What the cluster says of this
// node is used, and stays when the node object goes; load balancers then do not.
func TestClusterWithoutFiles(t *testing.T) {
	f := withCluster(t)
	addr := freePort(t)
	r := launch(t, "http_address = \""+addr+"\"\nsources = [\"kubernetes\"]\n")
	f.steps <- func(s source.Sink) {
		f.h.Joined(nil) // there is no node of this name
		s.Apply(object("a", "10.96.0.1"))
		s.Synced(kubernetesName)
	}
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/a" {
		t.Errorf("kernel holds %q", names)
	}
	healthz := func(want int) {
		t.Helper()
		if code, body := get(t, addr, "/healthz"); code != want {
			t.Errorf("/healthz: %d %s, want %d", code, body, want)
		}
	}
	healthz(503)
	member := &source.ClusterNode{Zone: "z", Eligible: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	f.steps <- func(source.Sink) { f.h.Joined(member) }
	r.eventually("pod CIDRs in use", func() bool { _, cidrs, _ := r.kernel.seen(); return cidrs == "[10.244.1.0/24]" })
	r.eventually("eligible", func() bool { code, _ := get(t, addr, "/healthz"); return code == 200 })
	healthz(200)
	leaves := *member
	leaves.Eligible = false
	f.steps <- func(source.Sink) { f.h.Joined(&leaves) }
	r.eventually("not eligible", func() bool { code, _ := get(t, addr, "/healthz"); return code == 503 })
	if code, _ := get(t, addr, "/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
	f.steps <- func(source.Sink) { f.h.Joined(member) }
	r.eventually("eligible", func() bool { code, _ := get(t, addr, "/healthz"); return code == 200 })
	f.steps <- func(source.Sink) { f.h.Joined(nil) }
	r.eventually("not eligible", func() bool { code, _ := get(t, addr, "/healthz"); return code == 503 })
	if st := r.status(); st.Settings.Zone != "z" || len(st.Sources) != 1 {
		t.Errorf("zone %q, %d sources", st.Settings.Zone, len(st.Sources))
	}
	http.DefaultClient.CloseIdleConnections()
}
