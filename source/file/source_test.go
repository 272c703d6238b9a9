package file

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// parseLines reads a service a line: its name and how many endpoints it has,
// as in "web 2". A line "bad ..." is a fault, "hm ..." a warning, "none" nothing.
func parseLines(_ read.Rules, _ context.Context, path string, data []byte, _ read.KnownServices) (svcs []*source.Service, faults []source.Fault, _ read.KnownServices) {
	if len(data) == 0 {
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty"}}, nil
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		name, count, _ := strings.Cut(line, " ")
		count, off, _ := strings.Cut(count, " ") // "off": it is disabled; a number: so many of its endpoints
		n, err := strconv.Atoi(count)
		switch {
		case name == "hm":
			faults = append(faults, source.Fault{Pos: source.Position{File: path}, Msg: line, Warning: true})
		case name == "none":
		case err != nil:
			faults = append(faults, source.Fault{Pos: source.Position{File: path}, Msg: line})
		default:
			svc := &source.Service{
				Key: source.Key{Namespace: "default", Name: name}, Endpoints: make([]source.Endpoint, n), Disabled: off == "off",
			}
			n, _ := strconv.Atoi(off)
			for i := range n {
				svc.Endpoints[i].Disabled = true
			}
			svcs = append(svcs, svc)
		}
	}
	return svcs, faults, nil
}

// A recorder is a sink that writes down what it is told.
type recorder struct {
	t     *testing.T
	dir   string
	mu    sync.Mutex
	calls []string
	holds map[string]string // by file name: services
	more  chan struct{}     // holds something after a call
	start time.Time         // zero: calls are written down without their time
}

func newRecorder(t *testing.T, dir string) *recorder {
	return &recorder{t: t, dir: dir, holds: map[string]string{}, more: make(chan struct{}, 1)}
}

// Apply implements source.Sink.
func (r *recorder) Apply(ch source.Changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var call []string
	for _, u := range ch.Set {
		var b []string
		for _, s := range u.Services {
			b = append(b, fmt.Sprintf("%s %d", s.Name, len(s.Endpoints)))
		}
		name := r.name(u.ID)
		if u.Since != 0 || u.Partial {
			r.t.Errorf("unit %v is partial (%v), or of %d", u.ID, u.Partial, u.Since)
		}
		r.holds[name] = strings.Join(b, ", ")
		call = append(call, name+": "+r.holds[name])
	}
	for _, id := range ch.Delete {
		name := r.name(id)
		if _, ok := r.holds[name]; !ok {
			r.t.Errorf("unit %v is deleted but was never set", id)
		}
		delete(r.holds, name)
		call = append(call, name+" removed")
	}
	r.called(strings.Join(call, "; "))
}

// Synced implements source.Sink.
func (r *recorder) Synced(src string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("synced " + src)
}

func (r *recorder) called(call string) {
	if !r.start.IsZero() {
		call = fmt.Sprintf("%v %s", time.Since(r.start), call)
	}
	r.calls = append(r.calls, call)
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *recorder) name(id source.UnitID) string {
	if id.Source != "file" || filepath.Dir(id.Name) != r.dir {
		r.t.Errorf("unit %v is not of %s", id, r.dir)
	}
	return filepath.Base(id.Name)
}

// take returns the calls since the last time.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// state returns what the sink holds.
func (r *recorder) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b []string
	for name, svcs := range r.holds {
		b = append(b, name+": "+svcs)
	}
	slices.Sort(b)
	return strings.Join(b, "; ")
}

// await waits until the sink holds want.
func (r *recorder) await(when, want string) {
	r.t.Helper()
	deadline := time.After(pace.Scale(10 * time.Second))
	for {
		got := r.state()
		if got == want {
			return
		}
		select {
		case <-r.more:
		case <-deadline:
			r.t.Fatalf("%s: the sink holds\n got: %s\nwant: %s", when, got, want)
		}
	}
}

// A fixture is a Source that runs on a directory of its own.
type fixture struct {
	*testing.T
	dir  string
	src  *Source
	sink *recorder
	log  bytes.Buffer
	stop func()
}

// start runs a Source on dir. Its poll is so slow that only events count.
func start(t *testing.T, dir string) *fixture {
	f := &fixture{T: t, dir: dir, sink: newRecorder(t, dir)}
	f.src = New(Options{Dir: dir, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&f.log, nil))})
	f.src.parse, f.src.parseCopy = parseLines, parseLines
	f.run()
	return f
}

func (f *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.src.Run(ctx, f.sink) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	f.Cleanup(f.stop)
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, text string) { write(f.T, f.path(name), text) }

// states returns "name state services" of all files.
func (f *fixture) states() string {
	var b []string
	for _, s := range f.src.Status().Files {
		b = append(b, fmt.Sprintf("%s %s %d", filepath.Base(s.Path), s.State, s.Services))
	}
	return strings.Join(b, "; ")
}

// awaitStates waits until Status says want.
func (f *fixture) awaitStates(want string) {
	f.Helper()
	pace.UntilOr(f, func() bool { return f.states() == want }, func() string {
		return fmt.Sprintf("files\n got: %s\nwant: %s", f.states(), want)
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(text), 0o644))
}

// One Apply with all that can be read, then Synced. What is broken or not
// readable hinders nobody.
func TestFirstLoad(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.toml": "b 1\n", "a.json": "a 2\n", "bad.toml": "bad x\n", "empty.toml": "", "none.toml": "none\n",
		"hm.toml": "hm\nh 1\n", "svcproxy.toml": "s 1", ".c.toml": "c 1", "d.toml~": "d 1", "e.toml.bak": "e 1", "f.txt": "f 1",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	check(t, os.Mkdir(filepath.Join(dir, "sub.toml"), 0o755))
	check(t, os.Symlink(dir, filepath.Join(dir, "link.toml")))
	check(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.toml")))

	f := start(t, dir)
	f.awaitStates("a.json accepted 1; b.toml accepted 1; bad.toml refused 0; dangling.toml refused 0; " +
		"empty.toml refused 0; hm.toml accepted 1; none.toml accepted 0")
	f.sink.await("start", "a.json: a 2; b.toml: b 1; hm.toml: h 1; none.toml: ")
	f.stop()
	want := []string{"a.json: a 2; b.toml: b 1; hm.toml: h 1; none.toml: ", "synced file"}
	if got := f.sink.take(); !slices.Equal(got, want) {
		t.Errorf("calls\n got: %q\nwant: %q", got, want)
	}
	if !f.src.Status().Synced {
		t.Error("Status does not say that it is synced")
	}
	checkLog(t, &f.log, dir, `WARN service file is broken: it has no services until it is corrected DIR/bad.toml 0
WARN service file is broken: it has no services until it is corrected DIR/dangling.toml 0
WARN service file is broken: it has no services until it is corrected DIR/empty.toml 0
WARN service file accepted with warnings DIR/hm.toml 1
INFO service files read 3
`)
}

// checkLog compares level, message, file and services of the log lines.
func checkLog(t *testing.T, log *bytes.Buffer, dir, want string) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(log.String()) {
		for i, key := range []string{"level=", "msg=", "file=", "services="} {
			_, value, ok := strings.Cut(line, " "+key)
			if !ok {
				continue
			}
			if quoted, err := strconv.QuotedPrefix(value); err == nil {
				value, _ = strconv.Unquote(quoted)
			} else {
				value = strings.Fields(value)[0]
			}
			if i > 0 {
				b.WriteString(" ")
			}
			b.WriteString(strings.ReplaceAll(value, dir, "DIR"))
		}
		b.WriteString("\n")
	}
	if got := b.String(); got != want {
		t.Errorf("log\n got:\n%swant:\n%s", got, want)
	}
}

func TestStatusFaults(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.toml")
	write(t, path, "hm so\nbad one\nbad two\n")
	f := start(t, dir)
	f.awaitStates("a.toml refused 0")
	var got []string
	for _, fault := range f.src.Status().Files[0].Faults {
		got = append(got, fault.String())
	}
	want := []string{path + ": warning: hm so", path + ": bad one", path + ": bad two"}
	if !slices.Equal(got, want) {
		t.Errorf("faults\n got: %q\nwant: %q", got, want)
	}
}

// The source as others use it, with the real parser.
func TestSourceWithTheRealParser(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.toml"), `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ port = 80 }]
endpoints = ["192.168.10.11", "192.168.10.12"]
`)
	write(t, filepath.Join(dir, "b.json"), `{"services": [{"name": "x"}]}`)
	sink := newRecorder(t, dir)
	f := &fixture{T: t, dir: dir, src: New(Options{Dir: dir}), sink: sink}
	f.run()
	sink.await("start", "a.toml: web 2")
	f.awaitStates("a.toml accepted 1; b.json refused 0")
}
