package proxier

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy/source"
)

// Status claims nothing that the kernel does not hold.
func TestStatusOfWhatTheKernelHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Sources = []string{"file", "kubernetes"} })
		wants := func(waiting string, actions ...string) {
			t.Helper()
			synctest.Wait()
			st := l.Status()
			if got := st.Families[0].Waiting; got != waiting {
				t.Errorf("waits for %q, want %q", got, waiting)
			}
			for i, want := range actions {
				if got := st.Services[i].Frontends[0].Action; got != want {
					t.Errorf("%s: %s, want %s", st.Services[i].Name, got, want)
				}
			}
		}
		x, y := file("a", "x 10.96.0.1:80"), file("b", "y 10.96.0.2:80")
		l.Apply(set(x, y))
		l.Synced("file")
		wants("kubernetes", "pending", "pending")
		l.Synced("kubernetes")
		wants("", "reject", "reject")

		k.failWith(errors.New("no"))
		served := *x.Services[0]
		served.Endpoints = []source.Endpoint{testEndpoint("10.0.0.1")}
		x.Services = []*source.Service{&served}
		l.Apply(set(x))
		wants("", "pending", "reject")
		k.failWith(nil)
		time.Sleep(time.Minute)
		wants("", "balance", "reject")
	})
}
