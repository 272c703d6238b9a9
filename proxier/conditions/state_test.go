package conditions

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// restart ends a Keeper, and starts another one with what the first has written.
func (h *host) restart() *host {
	h.t.Helper()
	h.stop()
	return run(h.t, h.dir)
}

// killed starts a Keeper with what is in the file now, as after kill -9. The first goes on.
func (h *host) killed() *host {
	h.t.Helper()
	dir := h.t.TempDir()
	if text, err := os.ReadFile(filepath.Join(h.dir, StateName)); err == nil {
		if err := os.WriteFile(filepath.Join(dir, StateName), text, 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	return run(h.t, dir)
}

// A restart knows what was known, before it asks anything.
func TestRestartKnowsConditions(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two, three, "10.0.0.4", "10.0.0.5 disabled"}, probed, slowly)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckFailed, one, three)
		h.set(svc, source.CheckPassed, two)
		h.told()
		h.set(svc, source.CheckPassed, three)
		h.drain(DrainTarget{Addr: netip.MustParseAddr(two)})
		time.Sleep(svc.SlowStart / 2)
		h.told()
		const before = "1 down, 2 up drained, 3 up 60%, 4, 5"
		h.want(svc, before)
		since := h.Details(svc.Key)[svc.EndpointAt(&svc.Endpoints[0])].Since

		h = h.restart()
		h.Use(svc.Key, svc)
		h.want(svc, before)
		if d := h.Details(svc.Key)[svc.EndpointAt(&svc.Endpoints[0])]; !d.Since.Equal(since) || d.Error != "refused" {
			t.Errorf("after a restart: %+v", d)
		}
		if len(h.told()) != 0 {
			t.Error("a restart is a change")
		}
		h.set(svc, source.CheckPassed, "10.0.0.4")
		h.told()
		h.want(svc, "1 down, 2 up drained, 3 up 60%, 4 up, 5")
		time.Sleep(svc.SlowStart / 2)
		h = h.restart()
		more := build("a", []string{one, two, three, "10.0.0.4", "10.0.0.5", "10.0.0.6"}, probed, slowly)
		h.Use(more.Key, more)
		h.set(more, source.CheckPassed, "10.0.0.5", "10.0.0.6")
		h.told()
		h.want(more, "1 down, 2 up drained, 3 up, 4 up, 5 up 10%, 6 up 10%")
	})
}

// A restart before services are read forgets nothing.
func TestRestartBeforeServicesForgetsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		a, b := build("a", []string{one}, probed, slowly), build("b", []string{two}, probed, slowly)
		h.Use(a.Key, a)
		h.Use(b.Key, b)
		h.set(a, source.CheckFailed, one)
		h.set(b, source.CheckPassed, two)
		h.told()
		h = h.restart()
		h.Use(a.Key, a) // b is not read yet
		h.told()
		h = h.restart()
		more := build("b", []string{two, three}, probed, slowly)
		h.Use(a.Key, a)
		h.Use(more.Key, more)
		h.set(more, source.CheckPassed, three)
		h.told()
		h.want(a, "1 down")
		h.want(more, "2 up, 3 up 10%")
	})
}

// Killed at any time, a restart knows all that was known a second before.
func TestKillLosesOneSecondAtMost(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two, three}, probed)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckFailed, one)
		versions, last := 0, ""
		past := []string{"1, 2, 3"} // what was known, each tenth of a second
		for i := range 100 {
			state := []source.CheckResult{source.CheckPassed, source.CheckFailed}[i/7%2]
			h.set(svc, state, two)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			past = append(past, h.known(svc))
			text, err := os.ReadFile(filepath.Join(h.dir, StateName))
			fatal.If(t, err)
			if string(text) != last {
				versions, last = versions+1, string(text)
			}
			again := h.killed()
			again.Use(svc.Key, svc)
			got := again.known(svc)
			if recent := past[max(0, len(past)-12):]; !slices.Contains(recent, got) {
				t.Errorf("killed after %v: %s, which was not so in the last second: %q", time.Duration(i+1)*100*time.Millisecond, got, recent)
			}
			again.stop()
		}
		if versions > 12 || versions < 5 {
			t.Errorf("it was written %d times in 10 s", versions)
		}
	})
}

// A drain is in the file when the one who asked for it is answered, and leaves it at once.
func TestDrainIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two})
		h.Use(svc.Key, svc)
		target := DrainTarget{Addr: netip.MustParseAddr(one)}
		h.drain(target)
		h.want(svc, "1 drained, 2")
		if len(h.calls) != 1 {
			t.Errorf("the Loop was told %d times when Drain returned", len(h.calls))
		}
		again := h.killed()
		again.Use(svc.Key, svc)
		again.want(svc, "1 drained, 2")
		again.stop()
		if had, err := h.Undrain(target); !had || err != nil {
			t.Errorf("undrained: %v, %v", had, err)
		}
		if had, err := h.Undrain(target); had || err != nil {
			t.Errorf("undrained again: %v, %v", had, err)
		}
		again = h.killed()
		again.Use(svc.Key, svc)
		again.want(svc, "1, 2")
		h.told()
		h.drain(DrainTarget{Node: true})
		if h.want(svc, "1, 2"); len(h.told()) != 0 || h.killed().Drains().Node() == nil {
			t.Error("a drain of this host is of its endpoints, or is not kept")
		}
	})
}

// Routers hear that this host is drained also while the disk does not answer, which may be why it is.
func TestDrainOfHostBeforeDisk(t *testing.T) {
	node := make(chan bool, 1)
	k := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), OnNode: func(drained bool) { node <- drained }})
	k.file.mu.Lock() // as one does who waits for the disk
	done := make(chan error)
	go func() { done <- k.Drain(DrainTarget{Node: true}, policy.Drain{}) }()
	select {
	case drained := <-node:
		if !drained {
			t.Error("told that this host is not drained")
		}
	case <-time.After(pace.Scale(5 * time.Second)):
		t.Error("the Loop is not told before the disk has it")
	}
	k.file.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A drain that began while the clock was years ahead ends after its time, not years later.
func TestDrainOfWrongClock(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		target, ahead := DrainTarget{Addr: netip.MustParseAddr(one)}, time.Now().AddDate(10, 0, 0)
		fatal.If(t, h.Drain(target, policy.Drain{At: ahead, Until: ahead.Add(time.Hour)}))
		h = h.restart()
		if left := time.Until(h.Drains().Get(target).Until); left > time.Hour {
			t.Errorf("it lasts for %v", left)
		}
		if err := h.Drain(target, policy.Drain{At: ahead, Until: time.Now().Add(time.Hour)}); err != nil { // the clock is right, and it gets a time
			t.Fatal(err)
		}
		h = h.restart()
		if left := time.Until(h.Drains().Get(target).Until); left <= 0 || left > time.Hour {
			t.Errorf("with a time that it got later, it lasts for %v", left)
		}
	})
}

// A drain is overdue from its deadline on, of which the Loop is told, and a restart knows it.
func TestDrainIsOverdue(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		plain, slow := build("a", []string{one, two}), build("b", []string{one}, slowly)
		h.Use(plain.Key, plain)
		h.Use(slow.Key, slow)
		time.Sleep(time.Minute) // until the Keeper has nothing to do
		fatal.If(t, h.Drain(DrainTarget{Addr: netip.MustParseAddr(one)}, policy.Drain{Until: time.Now().Add(time.Minute)}))
		time.Sleep(time.Minute - 3*batchTime)
		h.told()
		h.want(plain, "1 drained, 2")
		h.want(slow, "1 drained")
		if got := fmt.Sprint(h.told()); got != "[[default/a default/b]]" {
			t.Errorf("at the deadline the Loop was told of %s", got)
		}
		h.want(plain, "1 drained overdue, 2")
		h.want(slow, "1 drained overdue")
		if time.Sleep(time.Hour); len(h.told()) != 0 {
			t.Error("the Loop was told again")
		}
		h = h.restart()
		h.Use(plain.Key, plain)
		h.want(plain, "1 drained overdue, 2")
	})
}

// Where nothing can be written, all goes on, the log says it once, and it is tried again.
func TestStateThatCannotBeWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		file := filepath.Join(h.dir, StateName)
		fatal.If(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o755))
		svc := build("a", []string{one, two}, probed)
		h.Use(svc.Key, svc)
		for _, state := range []source.CheckResult{source.CheckFailed, source.CheckPassed, source.CheckFailed} {
			h.set(svc, state, one)
			time.Sleep(time.Minute)
			h.told()
		}
		h.want(svc, "1 down, 2")
		if h.Problem() == "" {
			t.Error("there is no problem")
		}
		if err := h.Drain(DrainTarget{Addr: netip.MustParseAddr(two)}, policy.Drain{}); err == nil {
			t.Error("a drain is kept where nothing can be written")
		}
		h.want(svc, "1 down, 2 drained")
		ended := DrainTarget{Addr: netip.MustParseAddr(three)}
		if err := h.Drain(ended, policy.Drain{}); err == nil {
			t.Error("another drain is kept where nothing can be written")
		}
		for _, had := range []bool{true, false} { // who is told that the end is not kept asks again
			if was, err := h.Undrain(ended); was != had || err == nil {
				t.Errorf("the end of a drain is kept where nothing can be written: %t, %v", was, err)
			}
		}
		time.Sleep(time.Minute) // what Drain left to be done is done
		fatal.If(t, os.RemoveAll(file))
		if had, err := h.Undrain(ended); had || err != nil {
			t.Errorf("the end of a drain is not kept when it can be: %t, %v", had, err)
		}
		if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), three+"\"") {
			t.Errorf("the file still has the drain: %s, %v", text, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.Problem() != "" {
			t.Errorf("still: %s", h.Problem())
		}
		h.stop()
		if n := strings.Count(h.log.String(), "cannot save the state of endpoints"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, h.log)
		}
		h = h.restart()
		h.Use(svc.Key, svc)
		h.want(svc, "1 down, 2 drained")
	})
}

// A missing file ends drains, and both log and status say so. A state that holds nothing is not missed.
func TestMissingStateIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lost = "the saved endpoint state is lost"
		h := run(t, t.TempDir())
		if strings.Contains(h.log.String(), lost) || h.Problem() != "" {
			t.Errorf("the first start: %q, %s", h.Problem(), h.log)
		}
		target := DrainTarget{Addr: netip.MustParseAddr(one)}
		h.drain(target)
		h.stop()
		remove := func() {
			fatal.If(t, os.Remove(filepath.Join(h.dir, StateName)))
		}
		remove()
		h = h.restart()
		if !strings.Contains(h.log.String(), lost) || !strings.Contains(h.Problem(), StateName+" was missing") {
			t.Errorf("without its file: %q, %s", h.Problem(), h.log)
		}
		h.drain(target)
		h.stop()
		h = h.restart()
		if strings.Contains(h.log.String(), lost) || h.Problem() != "" {
			t.Errorf("with a file again: %q, %s", h.Problem(), h.log)
		}
		if _, err := h.Undrain(target); err != nil {
			t.Fatal(err)
		}
		h.stop()
		remove()
		h = h.restart()
		if strings.Contains(h.log.String(), lost) || h.Problem() != "" {
			t.Errorf("without a file that held nothing: %q, %s", h.Problem(), h.log)
		}
	})
}

// Nothing that the file holds does harm, and what of it can be used is.
func TestHostileStateDoesNoHarm(t *testing.T) {
	svc := build("a", []string{one, two}, probed)
	const good = `"default/a":{"10.0.0.1:8080":{"state":"down"}}`
	const drain = `{"target":"10.0.0.2","by":"x"}`
	long := strings.Repeat("x", 1000)
	tests := []struct{ name, text, known, warning string }{
		{"good", `{"format":1,"services":{` + good + `}}`, "1 down, 2", ""},
		{"empty", ``, "1, 2", "part of the saved endpoint state is lost"},
		{"no JSON", `<html>`, "1, 2", "part of the saved endpoint state is lost"},
		{"cut off", `{"format":1,"services":{` + good, "1, 2", "part of the saved endpoint state is lost"},
		{"another type", `[1]`, "1, 2", "part of the saved endpoint state is lost"},
		{"another format", `{"format":2,"services":{` + good + `}}`, "1, 2", "format 2; want 1"},
		{"nothing", `null`, "1, 2", "part of the saved endpoint state is lost"},
		{"deep", strings.Repeat(`{"services":`, 20_000), "1, 2", "part of the saved endpoint state is lost"},
		{"unknown keys", `{"format":1,"x":[],"services":{` + good + `}}`, "1 down, 2", ""},
		{"no key", `{"format":1,"services":{"../../etc":{"10.0.0.1:8080":{}},` + good + `}}`, "1 down, 2", "part of the saved endpoint state cannot be used"},
		{"no address", `{"format":1,"services":{"default/b":{"\u001b[2J":{}},` + good + `}}`, "1 down, 2", `default/b \\x1b[2J`},
		{"no state", `{"format":1,"services":{"default/a":{"10.0.0.2:8080":{"state":"sideways"},"10.0.0.1:8080":{"state":"down"}}}}`, "1 down, 2", "endpoints=1"},
		{"an error that steers a terminal", `{"format":1,"services":{"default/a":{"10.0.0.1:8080":{"state":"down","error":"\u001b[2J` + long + `"}}}}`, "1 down, 2", ""},
		{"times to come", `{"format":1,"services":{"default/a":{"10.0.0.1:8080":{"state":"down","since":"9999-01-01T00:00:00Z","left":"9999-01-01T00:00:00Z"}}}}`, "1 down, 2", ""},
		{"a drain of nothing", `{"format":1,"drains":[{"target":"x/y/z/1"},` + drain + `],"services":{` + good + `}}`, "1 down, 2 drained", "drains=1"},
		{"a drain without a target", `{"format":1,"drains":[` + drain + `,{"by":"x"}],"services":{` + good + `}}`, "1 down, 2 drained", "want an address"},
		{"a drain with other faults", `{"format":1,"drains":[{"target":"10.0.0.2","since":"x","by":7}],"services":{` + good + `}}`, "1 down, 2 drained", "drains=1"},
		{"services cut off after drains", `{"format":1,"drains":[` + drain + `],"services":{` + good, "1, 2 drained", "drains=1"},
		{"drains cut off", `{"format":1,"drains":[` + drain + `,{"tar`, "1, 2 drained", "drains=1"},
		{"drains of another format", `{"format":2,"drains":[` + drain + `],"services":{` + good + `}}`, "1, 2 drained", "format 2; want 1"},
		{"services that are none", `{"format":1,"services":[],"drains":[` + drain + `]}`, "1, 2 drained", "drains=1"},
		{"drains that are a text", `{"format":1,"drains":"\u001b[2J","services":{` + good + `}}`, "1 down, 2", "drains are no list"},
		{"drains that are none", `{"format":1,"drains":null,"services":{` + good + `}}`, "1 down, 2", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				fatal.If(t, os.WriteFile(filepath.Join(dir, StateName), []byte(tt.text), 0o600))
				h := run(t, dir)
				synctest.Wait()
				if drained := strings.Contains(tt.known, "drained"); drained != (len(h.killed().Drains().List()) == 1) {
					t.Errorf("a drain is in the file soon after the start: %v, want %v", !drained, drained)
				}
				h.Use(svc.Key, svc)
				h.want(svc, tt.known)
				d := h.Details(svc.Key)[svc.EndpointAt(&svc.Endpoints[0])]
				if strings.Contains(d.Error, "\x1b") || len(d.Error) > maxError || d.Since.After(time.Now()) {
					t.Errorf("detail %+v", d)
				}
				h.stop()
				whole := tt.warning == "" || slices.Contains([]string{"no key", "no address", "no state"}, tt.name) // of single endpoints
				if kept, _ := os.ReadFile(filepath.Join(dir, StateName+badSuffix)); whole != (h.Problem() == "") || !whole && string(kept) != tt.text {
					t.Errorf("the problem is %q, and the file kept is %q", h.Problem(), kept)
				}
				if log := h.log.String(); (log != "") != (tt.warning != "") || !strings.Contains(log, tt.warning) {
					t.Errorf("the log has %q, want %q", log, tt.warning)
				}
			})
		})
	}
}

// What is no regular file is not waited for.
func TestStateOfAnotherKind(t *testing.T) {
	for _, tt := range []struct {
		make func(path string) error
		want string
	}{
		{func(path string) error { return syscall.Mkfifo(path, 0o600) }, "it is no regular file"},
		{func(path string) error { return os.Mkdir(path, 0o700) }, "it is no regular file"},
		{func(path string) error { return os.Symlink("/dev/zero", path) }, "it is no regular file"},
		{func(path string) error { return os.Symlink(path, path) }, "too many levels of symbolic links"},
	} {
		dir, log := t.TempDir(), new(bytes.Buffer)
		fatal.If(t, tt.make(filepath.Join(dir, StateName)))
		New(Config{StateDir: dir, Log: slog.New(slog.NewTextHandler(log, nil))})
		if !strings.Contains(log.String(), tt.want) {
			t.Errorf("the log has %q, want %q", log, tt.want)
		}
	}
}

// There is a bound of what is kept, of which those that are down have the most.
func TestStateIsBounded(t *testing.T) {
	h := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	key := source.Key{Namespace: "default", Name: "a"}
	s := &service{key: key, endpoints: map[netip.AddrPort]*endpoint{}}
	h.book.services[key] = s
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	}
	for i := range mostKept + 10 {
		s.endpoints[at(i)] = &endpoint{result: healthcheck.Result{State: source.CheckPassed}}
	}
	s.endpoints[at(7)].result.State = source.CheckFailed
	st := h.state(time.Now())
	kept := st.Services[key.String()]
	if len(kept) != mostKept || kept[at(7).String()].State != "down" || h.file.lost != 10 {
		t.Errorf("%d are kept, %d not; the one that is down: %+v", len(kept), h.file.lost, kept[at(7).String()])
	}
	for i := range mostFormer + 10 {
		h.book.former.add(endpointKey{key, at(i)}, s.endpoints[at(i)], time.Now())
	}
	if len(h.book.former.all) != mostFormer {
		t.Errorf("%d former endpoints, want %d", len(h.book.former.all), mostFormer)
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"format":1,"drains":[{"target":"node","by":"x"}],"services":{"default/a":{"10.0.0.1:8080":{"state":"down","slow_start":"2026-01-01T00:00:00Z"}}}}`))
	f.Add([]byte(`{"format":1,"drains":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		fatal.If(t, os.WriteFile(filepath.Join(dir, StateName), text, 0o600))
		log := slog.New(slog.DiscardHandler)
		k := New(Config{StateDir: dir, Log: log})
		fatal.If(t, k.save(false))
		again := New(Config{StateDir: dir, Log: log})
		if len(again.book.former.all) > len(k.book.former.all) || len(again.drains.List()) != len(k.drains.List()) {
			t.Errorf("%d endpoints and %d drains are now %d and %d", len(k.book.former.all), len(k.drains.List()), len(again.book.former.all), len(again.drains.List()))
		}
	})
}
