//go:build !nokubernetes

package kubernetes

import (
	"strings"
	"testing"

	"svcproxy/source"
)

// A health port that cannot be had is an Event of its service, in kube-proxy's words,
// and an API server that is away holds up nobody.
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
	a.stop()
	for range 10 * maxEvents {
		r.src.HealthPortFailed(key, 32000, "address already in use")
	}
}
