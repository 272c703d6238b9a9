//go:build netns

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// testEndpointsFrom: packets follow a list of endpoints that another program writes, within the
// second that is promised. One that does not fit the service, is broken, gone, or a directory, leaves them where they are,
// over a restart too.
func testEndpointsFrom(t *testing.T, e *env) {
	const list = "listed.endpoints.json"
	write := func(hosts ...*Host) {
		t.Helper()
		text, err := json.Marshal(at(hosts...))
		if err = errors.Join(err, e.daemon.WriteFile(list, string(text))); err != nil {
			t.Fatal(err)
		}
	}
	answers := check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}}
	follow := func(to *Host) {
		t.Helper()
		start := time.Now()
		answers.want = by(to)
		if err := pace.Poll(followPatience, func() error { return e.meet([]check{answers}) }); err != nil {
			t.Fatalf("after %v: %v\n%s", time.Since(start), err, e.daemon.LogTail(logLines))
		}
		t.Logf("followed within %v", time.Since(start))
	}
	s := e.named("listed", 1)
	s.EndpointsFrom = list
	write(e.Local[0])
	e.file(t, "listed", s)
	e.remove(t, "listed.json", list)
	follow(e.Local[0])
	for _, h := range []*Host{e.Local[1], e.Remote[0], e.Local[0]} {
		write(h)
		follow(h)
	}
	lacks := fmt.Sprintf(`[{"address": %q, "ports": {"other": 80}}]`, at(e.Remote[0])[0].Address)
	if err := e.daemon.WriteFile(list, lacks); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, `the service has no port named "other"`)
	if err := errors.Join(e.daemon.Stop(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, `the service has no port named "other"`)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})
	if err := e.daemon.WriteFile(list, `[{"address": "10.`); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, "the text ends within a value")
	if err := errors.Join(e.daemon.RemoveFile(list), e.daemon.Stop(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, "no such file")
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})
	write(e.Local[1])
	follow(e.Local[1])

	path := e.daemon.path(list)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, "it is a directory")
	if err := errors.Join(e.daemon.Stop(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, list, source.Stale, "it is a directory")
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[1])})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(e.Local[0])
	follow(e.Local[0])
}
