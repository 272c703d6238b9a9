//go:build netns

package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// orderRuns is how many random orders are tried.
var orderRuns = soak(max(2, Fewer(4)), 50)

// testOrder: whatever was written in between and in which order, the same files make the same kernel state.
func testOrder(t *testing.T, e *env) {
	var names []string
	for i := range 4 {
		names = append(names, e.orderName(i))
	}
	e.remove(t, names...)
	var reference []string
	for run := range orderRuns {
		e.history(t, names)
		e.expect(t, e.finalChecks(len(names))...)
		e.faultless(t, names...)
		if reference == nil {
			e.letGo()
			_, own, err := Snapshot(e.Node)
			if err != nil {
				t.Fatal(err)
			}
			reference = own
		}
		if err := pace.Poll(expectPatience, func() error { return e.whole(reference) }); err != nil {
			t.Fatalf("run %d made something else than the first: %v", run, err)
		}
	}
	e.exactly(t)
	e.clash(t, names[0])
}

// history takes files through random versions to their final ones.
func (e *env) history(t *testing.T, names []string) {
	t.Helper()
	for range 12 {
		i := rand.IntN(len(names))
		path := e.daemon.path(names[i])
		var err error
		switch rand.IntN(4) {
		case 0:
			err = write(path, "{")
		case 1:
			err = errors.Join(write(path, ""), removeAndWrite(path, e.orderText(t, i, rand.IntN(4))))
		case 2: // another file's services
			err = renameOver(path, e.orderText(t, rand.IntN(len(names)), rand.IntN(4)))
		default:
			err = write(path, e.orderText(t, i, rand.IntN(4)))
		}
		if err != nil {
			t.Fatal(err)
		}
		briefly(e.daemon.ConfigDir())
	}
	for _, i := range rand.Perm(len(names)) {
		if err := renameOver(e.daemon.path(names[i]), e.orderText(t, i, final)); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(2) == 0 {
			briefly(e.daemon.ConfigDir())
		}
	}
}

// final is the version of all files that all orders end with.
const final = 4

func (e *env) orderName(i int) string { return fmt.Sprintf("order-%d.json", i) }

// orderText returns a version of the i-th file.
func (e *env) orderText(t *testing.T, i, version int) string {
	t.Helper()
	s := e.named(fmt.Sprint("order-", i), byte(10+i), at(e.Local[version%EndpointHosts], e.Remote[i%EndpointHosts])...)
	services := []Service{s}
	if version%2 == 0 {
		more := e.named(fmt.Sprint("more-", i), byte(20+i), at(e.Remote[version%EndpointHosts])...)
		more.SessionAffinity = "client_ip"
		more.Ports[0].NodePort = e.nodePort() + 100*uint16(i+1)
		services = append(services, more)
	}
	text, err := File(services...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (e *env) finalChecks(files int) (checks []check) {
	for i := range files {
		checks = append(checks,
			check{from: e.Client, to: e.vip(byte(10 + i)), want: by(e.Local[final%EndpointHosts], e.Remote[i%EndpointHosts])},
			check{from: e.Client, source: e.Client.Addrs[0], to: e.vip(byte(20 + i)), want: by(e.Remote[final%EndpointHosts])})
	}
	return checks
}

// clash adds files with the services of another and a broken one. The state
// directory knows who came first, and what was in the broken one.
func (e *env) clash(t *testing.T, holder string) {
	t.Helper()
	e.remove(t, "a-clash.json", "z-clash.json", "z-broken.json")
	for _, name := range []string{"a-clash.json", "z-clash.json"} {
		if err := write(e.daemon.path(name), e.orderText(t, 0, final)); err != nil {
			t.Fatal(err)
		}
		e.expectState(t, name, source.Refused, "is already defined")
	}
	broken := e.daemon.path("z-broken.json")
	if err := write(broken, e.orderText(t, 5, final)); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, "z-broken.json", source.Accepted, "[]")
	if err := write(broken, "{"); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, "z-broken.json", source.Stale, "")
	if err := e.daemon.RemoveFile(holder); err != nil { // one of the two gets its claims
		t.Fatal(err)
	}
	e.expectState(t, "a-clash.json", source.Accepted, "[]")
	if err := renameOver(e.daemon.path(holder), e.orderText(t, 0, final)); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, holder, source.Refused, "is already defined")
	e.exactly(t)
	e.expectState(t, "a-clash.json", source.Accepted, "[]")
	e.expectState(t, holder, source.Refused, "is already defined")
	e.expectState(t, "z-broken.json", source.Stale, "")
}
