//go:build !nokubernetes

package kubernetes

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// keeping is a source with a state directory, and one that has ended before it.
func keeping(t *testing.T, a *apiServer, dir string) Options {
	o := at(a)
	o.StateDir = dir
	return o
}

// ran runs a source until it has what is wanted, ends it, and waits until that is kept, for
// which the end of a source does not wait for long.
func ran(t *testing.T, o Options, want string) {
	t.Helper()
	kept := filepath.Join(o.StateDir, lastKnownName)
	before, _ := os.Stat(kept)
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{&record{now: map[string]*source.Service{}}, t, nil}
	o.OnNode = r.onNode
	r.src = New(o)
	done := make(chan error, 1)
	go func() { done <- r.src.Run(ctx, r) }()
	r.wants(want)
	r.eventually("synced", func() bool { return r.src.Status().Synced })
	cancel()
	fatal.If(t, <-done)
	r.eventually("kept", func() bool {
		now, err := os.Stat(kept)
		return err == nil && (before == nil || !now.ModTime().Equal(before.ModTime()))
	})
}

// A host that starts while the API server is away serves what it last said, and
// says so; what changed meanwhile is taken over in one step.
func TestLastKnownIsServedWithoutAServer(t *testing.T) {
	dir := t.TempDir()
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: "here", Labels: map[string]string{core.LabelTopologyZone: "z"}}}
	a := startAPIServer(t, node, svc("a", "10.96.0.1"), eps("a-1", "a", "10.0.0.1", "10.0.0.2"), svc("b", "10.96.0.2"), svc("c", "10.96.0.3"))
	before := "default/a 10.0.0.1 10.0.0.2; default/b; default/c"
	ran(t, keeping(t, a, dir), before)
	a.stop()

	r := run(t, keeping(t, a, dir))
	r.wants(before)
	r.syncedAfter(1)
	st := r.src.Status()
	if st.Synced || st.Connection.Connected || len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "STALE") || !strings.Contains(st.Warnings[0], "3 services") {
		t.Errorf("status %+v", st)
	}
	r.mu.Lock()
	if r.node == nil || r.node.Zone != "z" {
		t.Errorf("node %+v", r.node)
	}
	r.mu.Unlock()

	a.put(eps("a-1", "a", "10.0.0.1"), svc("d", "10.96.0.4"))
	a.delete(svc("b", "10.96.0.2"))
	a.start()
	after := "default/a 10.0.0.1; default/c; default/d"
	r.wants(after)
	r.eventually("synced", func() bool { return r.src.Status().Synced })
	if st := r.src.Status(); len(st.Warnings) != 0 {
		t.Errorf("warnings %q", st.Warnings)
	}
	if h := r.history(0); len(h) != 2 {
		t.Errorf("%d steps, want what was known and what is: %q", len(h), h)
	}
}

// The ranges of ClusterIPs are kept too, for the first sync, and stay until the API
// server has said which there are.
func TestLastKnownServiceCIDRs(t *testing.T) {
	dir := t.TempDir()
	c, _ := listedCluster(t, Options{StateDir: dir})
	c.ranges.set("kubernetes", prefixes("10.96.0.0/16"))
	c.ranges.listed = true
	c.flush(time.Now())
	h, services := c.lastKnown()
	fatal.If(t, remote.Save(c.src.lastKnownPath(), h, services))
	known, services, err := c.src.recall()
	fatal.If(t, err)
	rec := &record{now: map[string]*source.Service{}}
	var told []netip.Prefix
	is := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(told, prefixes(want...)) {
			t.Errorf("%s: told %v, want %v", when, told, want)
		}
	}
	c = newCluster(New(Options{OnServiceCIDRs: func(list []netip.Prefix) {
		if told = list; rec.synced != 0 && len(list) > 0 {
			t.Error("told after the first sync")
		}
	}}), rec)
	c.use(known, services)
	is("last known", "10.96.0.0/16")
	c.begin("one")
	c.heard = [kinds]bool{true, true, true}
	c.flush(time.Now())
	is("all but the ranges are listed", "10.96.0.0/16")
	c.ranges.listed = true
	c.flush(time.Now())
	is("there are none")
}

// It is not only written at the end, which a host that fails does not have.
func TestLastKnownIsWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := run(t, keeping(t, startAPIServer(t, svc("a", "10.96.0.1")), dir))
	r.eventually("written", func() bool {
		services, err := remote.Load(filepath.Join(dir, lastKnownName), new(lastKnown))
		return err == nil && len(services) == 1
	})
}

// A reachable API server says what there is, and nothing old is served before.
func TestLastKnownIsNotUsedBesideAnAnswer(t *testing.T) {
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	ran(t, keeping(t, a, dir), "default/a")
	a.delete(svc("a", "10.96.0.1"))
	a.put(svc("b", "10.96.0.2"))
	r := run(t, keeping(t, a, dir))
	r.wants("default/b")
	if h := r.history(0); len(h) != 1 {
		t.Errorf("steps %q", h)
	}
}

// One failure that passes does not bring back what is old.
func TestLastKnownIsNotUsedAfterOneFailure(t *testing.T) {
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	ran(t, keeping(t, a, dir), "default/a")
	a.stop()
	a.delete(svc("a", "10.96.0.1"))
	a.put(svc("b", "10.96.0.2"))
	begin := time.Now()
	r := run(t, keeping(t, a, dir))
	<-r.src.Failed()
	a.start()
	r.wants("default/b")
	took := time.Since(begin)
	if h := r.history(0); len(h) != 1 && took < failedPatience { // else this machine is too busy to say
		t.Errorf("listed after %v, and steps %q", took, h)
	}
}

// What is old waits for a second try, however soon the first one fails.
func TestLastKnownWaitsAfterAFailure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	ran(t, keeping(t, a, dir), "default/a")
	a.stop()
	begin, r := time.Now(), &toldSynced{told: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(keeping(t, a, dir)).Run(ctx, r) }()
	<-r.told
	if took := time.Since(begin); took < failedPatience || !r.applied {
		t.Errorf("synced after %v, want %v or more; handed on %v", took, failedPatience, r.applied)
	}
	cancel()
	<-done
}

// What is damaged, or of another cluster or node, is not used; other sources go on
// without it, and without them the first list is waited for.
func TestLastKnownUnusable(t *testing.T) {
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	ran(t, keeping(t, a, dir), "default/a")
	whole, err := os.ReadFile(filepath.Join(dir, lastKnownName))
	fatal.If(t, err)
	a.stop()
	elsewhere := func(o *Options) { o.APIServer = "http://127.0.0.1:1" }
	tests := []struct {
		name string
		text []byte
		edit func(*Options)
	}{
		{"none", nil, nil},
		{"empty", []byte{}, nil},
		{"cut off", whole[:len(whole)-9], nil},
		{"damaged", append(append([]byte{}, whole[:len(whole)-6]...), "damage"...), nil},
		{"another cluster", whole, elsewhere},
		{"another node", whole, func(o *Options) { o.NodeName = "there" }},
		{"another proxy", whole, func(o *Options) { o.ProxyName = "mine" }},
	}
	for _, tt := range tests {
		for _, beside := range []bool{false, true} {
			if !beside && tt.text != nil && tt.name != "damaged" {
				continue // alone, all that matters is whether there is anything
			}
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				if tt.text != nil {
					fatal.If(t, os.WriteFile(filepath.Join(dir, lastKnownName), tt.text, 0o600))
				}
				o := keeping(t, a, dir)
				o.Beside = beside
				if tt.edit != nil {
					tt.edit(&o)
				}
				r := &toldSynced{told: make(chan struct{})}
				src := New(o)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- src.Run(ctx, r) }()
				wait := within
				if !beside {
					<-src.Failed()
					wait = failedPatience + 200*time.Millisecond
				}
				select {
				case <-r.told:
					if !beside {
						t.Error("synced, and nothing is known")
					}
				case <-time.After(wait):
					if beside {
						t.Error("other sources wait")
					}
				}
				cancel()
				<-done
				if r.applied {
					t.Error("it is used")
				}
			})
		}
	}
}

// A toldSynced notes that it was told so.
type toldSynced struct {
	told    chan struct{}
	applied bool
}

func (s *toldSynced) Apply(source.Changes) { s.applied = true }
func (s *toldSynced) Synced(string)        { close(s.told) }

// A kill while it is written leaves what was there, and no draft for long.
func TestLastKnownDrafts(t *testing.T) {
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	draft := filepath.Join(dir, lastKnownName+".new")
	fatal.If(t, os.WriteFile(draft, []byte("half"), 0o600))
	ran(t, keeping(t, a, dir), "default/a")
	if _, err := os.Stat(draft); !os.IsNotExist(err) {
		t.Errorf("the draft is still there: %v", err)
	}
}

// What a node says again changes nothing, and nothing is written for it.
func TestNodeSaysTheSame(t *testing.T) {
	c, _ := listedCluster(t, Options{StateDir: t.TempDir()})
	node := func(zone string) *source.ClusterNode {
		return parseNode(&core.Node{ObjectMeta: meta.ObjectMeta{Name: "here", Labels: map[string]string{core.LabelTopologyZone: zone}}})
	}
	for i, tt := range []struct {
		zone    string
		changes bool
	}{{"z", true}, {"z", false}, {"y", true}} {
		for at, some := c.keeper.Due(); some; at, some = c.keeper.Due() {
			c.keeper.Save(at)
			c.keeper.Idle(time.After(within))
		}
		c.setNode(node(tt.zone))
		c.flush(time.Now())
		if _, changed := c.keeper.Due(); changed != tt.changes {
			t.Errorf("%d: zone %s: to be written %v, want %v", i, tt.zone, changed, tt.changes)
		}
	}
}

// What comes back is what was handed on.
func TestLastKnownSaysTheSame(t *testing.T) {
	s := parseService(svc("a", "10.96.0.1", func(s *core.Service) {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::1")
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = core.ServiceTypeLoadBalancer, core.ServiceExternalTrafficPolicyLocal, 32000
		s.Spec.SessionAffinity, s.Spec.ExternalIPs = core.ServiceAffinityClientIP, []string{"192.0.2.1"}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
		s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "192.0.2.2"}}
	}), newWords())
	of := eps("s", "a", "10.0.0.1", "10.0.0.2!")
	of.Endpoints[0].NodeName, of.Endpoints[0].Zone = new("n"), new("z")
	of.Endpoints[0].Hints = nil
	merged, _ := merge(s.Service, []*slice{parseSlice(of, newWords())})
	more := merged.Endpoints[0].Extras()
	more.Hints = &source.Hints{Nodes: []string{"n"}, Zones: []string{"z"}}
	merged.Endpoints[0] = merged.Endpoints[0].With(more)
	path := filepath.Join(t.TempDir(), lastKnownName)
	fatal.If(t, remote.Save(path, new(lastKnown), []remote.Handed{{Since: 7, Service: merged}}))
	back, err := remote.Load(path, new(lastKnown))
	fatal.If(t, err)
	if len(back) != 1 || back[0].Since != 7 || !back[0].Service.Equal(merged) {
		t.Errorf("\n got %+v\nwant %+v", back, merged)
	}
}

// An API server that answers nothing is not waited for.
func TestLastKnownWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	ran(t, keeping(t, a, dir), "default/a")
	release := a.hold("services")
	defer release()
	run(t, keeping(t, a, dir)).wants("default/a")
}
