//go:build !nokubernetes

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// A record is a sink that keeps what it was given, and every state between.
type record struct {
	mu      sync.Mutex
	now     map[string]*source.Service
	since   map[string]int64 // as handed on last
	states  []string         // after each step
	changed []int64          // when, in s since 1970
	synced  int
	node    *source.ClusterNode
}

func (r *record) Apply(ch source.Changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ch.Delete {
		delete(r.now, id.Name)
	}
	if r.since == nil {
		r.since = map[string]int64{}
	}
	for _, u := range ch.Set {
		r.now[u.ID.Name], r.since[u.ID.Name] = u.Services[0], u.Since
		for _, t := range u.Changed {
			r.changed = append(r.changed, t.Unix())
		}
	}
	r.states = append(r.states, r.text())
}

func (r *record) Synced(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = len(r.states)
}

func (r *record) onNode(n *source.ClusterNode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = n
}

// text is one line: "default/a 10.0.0.1 10.0.0.2; default/b".
func (r *record) text() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.now)) {
		for _, e := range r.now[name].Endpoints {
			name += " " + e.Addr.String()
			if !e.Ready {
				name += "!"
			}
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, "; ")
}

func (r *record) look() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text()
}

// history returns the states since the n-th.
func (r *record) history(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.states[n:])
}

// A running source.
type running struct {
	*record
	t   *testing.T
	src *Source
}

func run(t *testing.T, o Options) *running {
	r := &running{&record{now: map[string]*source.Service{}}, t, nil}
	o.OnNode = r.onNode
	r.src = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.src.Run(ctx, r) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(pace.Scale(time.Second)):
			t.Error("Run goes on after its end")
		}
	})
	return r
}

func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	pace.UntilOr(r.t, ok, func() string {
		return fmt.Sprintf("%s; have %q, connection %+v", what, r.look(), *r.src.Status().Connection)
	})
}

func (r *running) wants(text string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%q", text), func() bool { return r.look() == text })
}

// syncedAfter waits until the sink was told so, which comes after its step, and after status.
func (r *running) syncedAfter(step int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("synced after step %d", step), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.synced == step
	})
}

func (r *running) connected(want bool) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("connected: %v", want), func() bool { return r.src.Status().Connection.Connected == want })
}

func at(a *apiServer) Options { return Options{APIServer: "http://" + a.addr, NodeName: "here"} }

// svc is a service with port 80 at a cluster IP.
func svc(name, ip string, edit ...func(*core.Service)) *core.Service {
	s := &core.Service{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: meta.Unix(1000, 0)},
		Spec: core.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Type: core.ServiceTypeClusterIP,
			Ports: []core.ServicePort{{Port: 80, Protocol: core.ProtocolTCP}},
		},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

// eps is a slice of a service with endpoints on port 8080, ready except those ended by "!".
func eps(name, service string, addrs ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discovery.LabelServiceName: service}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(core.ProtocolTCP)}},
	}
	for _, a := range addrs {
		addr, unready := strings.CutSuffix(a, "!")
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{
			Addresses:  []string{addr},
			Conditions: discovery.EndpointConditions{Ready: new(!unready), Serving: new(!unready)},
		})
	}
	return s
}
