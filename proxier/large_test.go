package proxier

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/source"
)

// large returns a file with one service of 100 ports at an address.
func large(name, addr string) source.Unit {
	svc := testService(func(s *source.Service) {
		s.Key.Name, s.VIPs, s.Ports = name, addrs(addr), nil
		for port := range uint16(100) {
			s.Ports = append(s.Ports, source.Port{Name: fmt.Sprint("p", port), Protocol: source.TCP, Port: port + 1, TargetPort: 8080})
		}
	}, testEndpoints("10.0.0.1"))
	return source.Unit{ID: source.UnitID{Source: "file", Name: name}, Services: []*source.Service{svc}}
}

// lowerLarge makes services of 100 ports large until the test ends.
func lowerLarge(t *testing.T) {
	old := largeService
	largeService = 20
	t.Cleanup(func() { largeService = old })
}

// frontends returns how many a service has in the kernel.
func (k *kernel) frontends(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.services[source.Key{Namespace: "default", Name: name}].AllFrontends())
}

// Large services come one by one, after what came with them, and other changes go between.
func TestLoopPutsOffLargeServices(t *testing.T) {
	lowerLarge(t)
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		var log logtest.Text
		l := start(t, k, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(set(large("big", "10.96.0.1"), large("huge", "10.96.0.3"), file("small", "small 10.96.0.2:80")))
		await := func(name string) {
			t.Helper()
			for start := time.Now(); k.frontends(name) == 0; time.Sleep(100 * time.Millisecond) {
				if time.Since(start) > time.Minute {
					t.Fatalf("%s does not come", name)
				}
			}
		}
		await("small")
		if n := k.frontends("big") + k.frontends("huge"); n != 0 {
			t.Errorf("%d frontends of large services before the small one", n)
		}
		if st := l.Status().Services[1]; st.Name != "huge" || len(st.Warnings) != 1 || st.Warnings[0] != waitingText {
			t.Errorf("status %+v", st.Warnings)
		}
		if strings.Contains(log.String(), "service=default/big") {
			t.Errorf("logged too early:\n%s", &log)
		}
		l.Apply(set(file("late", "late 10.96.0.4:80"))) // while the first large one is written
		await("late")
		if a, b := k.frontends("big"), k.frontends("huge"); a != 100 || b != 0 {
			t.Errorf("%d and %d frontends of large services when the other change came, want 100 and 0", a, b)
		}
		await("huge")
		time.Sleep(time.Second)
		for _, name := range []string{"big", "huge"} {
			if n := strings.Count(log.String(), "service=default/"+name+" change=\"added"); n != 1 || k.frontends(name) != 100 {
				t.Errorf("%s: %d lines, %d frontends\n%s", name, n, k.frontends(name), &log)
			}
		}
		if st := l.Status().Services[0]; len(st.Warnings) > 0 || len(st.Frontends) != 100 || k.err != "" {
			t.Errorf("status: %v, %d frontends; %s", st.Warnings, len(st.Frontends), k.err)
		}
	})
}

// What another service gives up comes at once to a large one, and one that comes back is never away.
func TestLoopMovesToLargeServicesAtOnce(t *testing.T) {
	lowerLarge(t)
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k)
		l.Apply(set(file("a", "small 10.96.0.1:50")))
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(source.Changes{Set: []source.Unit{large("big", "10.96.0.1")}, Delete: []source.UnitID{{Source: "file", Name: "a"}}})
		for k.frontends("small") > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if n := k.frontends("big"); n != 100 {
			t.Errorf("%d frontends when the other service was gone, want 100", n)
		}
		l.Apply(set(file("b", "busy 10.96.0.9:50"))) // the kernel is busy with this
		time.Sleep(100 * time.Millisecond)
		l.Apply(gone("big"))
		time.Sleep(100 * time.Millisecond)
		l.Apply(set(large("big", "10.96.0.1"))) // nobody has seen it go
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if n := k.frontends("big"); n != 100 {
				t.Fatalf("%d frontends of a service that came back", n)
			}
		}
	})
}

// A large service that waits is what it is by then: changed, or gone.
func TestLoopChangesLargeServicesThatWait(t *testing.T) {
	lowerLarge(t)
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k)
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(set(large("big", "10.96.0.1"), large("huge", "10.96.0.3")))
		time.Sleep(100 * time.Millisecond)
		changed := large("huge", "10.96.0.3")
		testEndpoints("10.0.0.1", "10.0.0.2")(changed.Services[0])
		l.Apply(set(changed))
		time.Sleep(30 * time.Second)
		if n := k.frontends("huge"); n != 100 || len(k.services[changed.Services[0].Key].Pools[99].Targets) != 2 {
			t.Errorf("%d frontends", n)
		}
		l.Apply(set(large("more", "10.96.0.5"), large("most", "10.96.0.6")))
		time.Sleep(100 * time.Millisecond)
		l.Apply(gone("most"))
		time.Sleep(30 * time.Second)
		if a, b := k.frontends("more"), k.frontends("most"); a != 100 || b != 0 || k.err != "" {
			t.Errorf("%d and %d frontends; %s", a, b, k.err)
		}
	})
}
