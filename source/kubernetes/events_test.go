//go:build !nokubernetes

package kubernetes

import (
	"strings"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/source"
)

// A health port that cannot be opened is an Event of its service, in kube-proxy's words.
func TestHealthPortFailed(t *testing.T) {
	a := startAPIServer(t, svc("web", "10.96.0.1"))
	r := run(t, at(a))
	r.wants("default/web")
	key := source.Key{Namespace: "default", Name: "web"}
	r.src.HealthPortFailed(key, 32000, "address already in use")
	written := func() []string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.written
	}
	r.eventually("written", func() bool { return len(written()) == 1 })
	got := written()[0] // protobuf has strings as they are
	for _, want := range []string{
		"/apis/events.k8s.io/v1/namespaces/default/events ", "FailedToStartServiceHealthcheck", "Listen", "Warning", "Service",
		`node here failed to start healthcheck "default/web" on port 32000: address already in use`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}

// An API server that does not answer holds up nobody: what it does not take is dropped.
func TestHealthPortFailedDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{NodeName: "here"}) // not run, so that nobody sends
		for range 2 * maxEvents {
			s.HealthPortFailed(source.Key{Namespace: "default", Name: "web"}, 32000, "address already in use")
		}
		if n := len(s.events); n != maxEvents {
			t.Errorf("%d events wait, want %d", n, maxEvents)
		}
	})
}
