//go:build netns

package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// polled waits until the index was asked for so many times more.
func polled(t *testing.T, s *Store, times int) {
	t.Helper()
	until := s.Polls() + times
	pace.Until(t, fmt.Sprint(times, " polls"), func() bool { return s.Polls() >= until })
}

// Whatever a store of service files does, the services that it had go on: connections that are held, and new ones. A start
// while it is gone serves the last known services.
func TestStore(t *testing.T) {
	t.Parallel()
	m := modes[slices.IndexFunc(modes, func(m mode) bool { return m.name == "nftables" })]
	e := &env{Lab: newLab(t), mode: m, number: 1}
	s, err := NewStore()
	fatal.If(t, errors.Join(err, s.Start(e.Node)))
	t.Cleanup(s.Stop)
	web := e.everywhere(at(e.Local[0])...)
	web.Name = "web"
	mail := e.service(at(e.Local[1])...)
	mail.Name, mail.VIPs = "mail", e.vip(2).Each()
	files := map[string]string{}
	for _, service := range []Service{web, mail} {
		text, err := File(service)
		fatal.If(t, err)
		files[service.Name+".json"] = text
	}
	old := s.Publish(map[string]string{"web.json": files["web.json"]})
	now := s.Publish(files)

	e.daemon = newDaemon(t, e.Lab, m)
	e.settings = fmt.Sprintf("mode = %q\nnode_name = \"node\"\nsources = [\"http\"]\n[http]\nurls = [%q]\ninterval = \"100ms\"\ntimeout = \"1s\"\npublic_key = %q\n", m.name, IndexURL, s.Public)
	if err := errors.Join(m.prepare(e.Node), e.daemon.Settings(e.settings), e.daemon.Start()); err != nil {
		t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
	}
	served := []check{{from: e.Client, to: e.vip(1), want: by(e.Local[0])}, {from: e.Client, to: e.vip(2), want: by(e.Local[1])}}
	e.expect(t, served...)
	var conns []*Conn
	for len(conns) < 1000 {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	goesOn := func(t *testing.T, when string) {
		t.Helper()
		e.goOn(t, when, conns)
		e.expect(t, served...)
	}

	for _, f := range StoreFaults {
		t.Run(f.Name, func(t *testing.T) {
			version := s.Version()
			f.Begin(s, old, now)
			polled(t, s, 3)
			goesOn(t, "beside "+f.Name)
			text, err := e.daemon.Command("status")
			if told := strings.Contains(text, IndexURL) || strings.Contains(text, "HELD"); err == nil && !told && f.Name != "304 to everything" {
				t.Errorf("status does not tell of it:\n%s", text)
			}
			now = s.Restore(now, version)
			polled(t, s, 2)
			goesOn(t, "after "+f.Name)
		})
	}

	s.Stop()
	start := time.Now()
	for time.Since(start) < 600*100*time.Millisecond { // 600 polls
		time.Sleep(10 * time.Second)
		goesOn(t, "while the store is gone")
	}
	fatal.If(t, errors.Join(e.daemon.Stop(), e.daemon.Start()))
	start = time.Now()
	goesOn(t, "after a start while the store is gone")
	t.Logf("after a start without the store, all answered %s after svcproxy was ready", time.Since(start))

	delete(files, "mail.json")
	s.Publish(files)
	fatal.If(t, s.Start(e.Node))
	served[1].want = e.givenUp()
	goesOn(t, "once the store is back")
}
