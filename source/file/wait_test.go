package file

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/watch"
)

// blind runs a Source in a synctest bubble. It has no watcher, whose goroutine
// no bubble could wait for: Reload takes the place of events. f.run is as in
// Run from there on.
func blind(t *testing.T, dir string) *fixture {
	f := &fixture{T: t, dir: dir, sink: newRecorder(t, dir)}
	f.src = New(Options{Dir: dir, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&f.log, nil))})
	f.src.parse, f.src.parseCopy = parseLines, parseLines
	f.src.watchErr = "blind"
	f.stop = f.loop()
	synctest.Wait()
	f.sink.take()
	f.sink.start = time.Now()
	return f
}

func (f *fixture) loop() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.src.run(ctx, f.sink) }()
	return func() { cancel(); <-done }
}

// A move is one change of a.toml.
type move struct {
	at   time.Duration
	text string // "remove": the file is removed
}

func (f *fixture) move(i int, text string) {
	if text == "remove" {
		check(f.T, os.Remove(f.path("a.toml")))
	} else {
		f.write("a.toml", text)
		// Each its own time, also where the clock of files is coarse: these
		// moves follow each other much faster than they say.
		at := time.Unix(1e9+int64(i), 0)
		check(f.T, os.Chtimes(f.path("a.toml"), at, at))
	}
	f.src.Reload()
}

// after writes down a call of the sink at a time.
func after(d time.Duration, call string) string { return fmt.Sprintf("%v %s", d, call) }

// rewrites are versions in turn, one each 100 ms for 2.3 s.
func rewrites(texts ...string) (moves []move) {
	for i := range 23 {
		moves = append(moves, move{time.Duration(i) * 100 * time.Millisecond, texts[i%len(texts)]})
	}
	return moves
}

// When a change counts.
func TestVersionsTakeEffectInTime(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name   string
		before string // "remove": no file
		moves  []move
		want   []string // calls of the sink, with their time
		states string   // at the end
	}{
		{"more endpoints", "a 1\n", []move{{0, "a 2\n"}}, []string{after(mergeTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"one more service", "a 1\n", []move{{0, "a 1\nb 0\n"}}, []string{after(mergeTime, "a.toml: a 1, b 0")}, "a.toml accepted 2"},
		{"as many endpoints", "a 1\n", []move{{0, "hm\na 1\n"}}, []string{after(mergeTime, "a.toml: a 1")}, "a.toml accepted 1"},
		{"fewer endpoints", "a 3\n", []move{{0, "a 2\n"}}, []string{after(mergeTime+quietTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"no endpoints", "a 1\n", []move{{0, "a 0\n"}}, []string{after(mergeTime+quietTime, "a.toml: a 0")}, "a.toml accepted 1"},
		{"more here, fewer there", "a 1\nb 2\n", []move{{0, "a 9\nb 1\n"}}, []string{after(mergeTime+quietTime, "a.toml: a 9, b 1")}, "a.toml accepted 2"},
		{"a service less", "a 1\nb 1\n", []move{{0, "b 1\n"}}, []string{after(mergeTime+quietTime, "a.toml: b 1")}, "a.toml accepted 1"},
		{"another service", "a 1\n", []move{{0, "b 1\n"}}, []string{after(mergeTime+quietTime, "a.toml: b 1")}, "a.toml accepted 1"},
		{"explicitly none", "a 1\n", []move{{0, "none\n"}}, []string{after(mergeTime+quietTime, "a.toml: ")}, "a.toml accepted 0"},
		{"fewer and fewer", "a 3\n", []move{{0, "a 2\n"}, {150 * ms, "a 1\n"}}, []string{after(150*ms+mergeTime+quietTime, "a.toml: a 1")}, "a.toml accepted 1"},
		{"fewer, written again", "a 3\n", []move{{0, "a 2\n"}, {150 * ms, "a 2\n"}}, []string{after(150*ms+mergeTime+quietTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"fewer, then more", "a 3\n", []move{{0, "a 2\n"}, {100 * ms, "a 4\n"}}, []string{after(100*ms+mergeTime, "a.toml: a 4")}, "a.toml accepted 1"},
		{"fewer, then as before", "a 3\n", []move{{0, "a 2\n"}, {100 * ms, "a 3\n"}}, nil, "a.toml accepted 1"},
		{"fewer, then gone", "a 3\n", []move{{0, "a 2\n"}, {100 * ms, "remove"}}, []string{after(100*ms+mergeTime+goneTime, "a.toml removed")}, ""},

		{"broken", "a 3\n", []move{{0, "bad\n"}}, nil, "a.toml stale 1"},
		{"broken for a moment", "a 3\n", []move{{0, "a"}, {100 * ms, "a 4\n"}}, []string{after(100*ms+mergeTime, "a.toml: a 4")}, "a.toml accepted 1"},
		{"broken, then as before", "a 3\n", []move{{0, "bad\n"}, {300 * ms, "a 3\n"}}, []string{after(300*ms+mergeTime, "a.toml: a 3")}, "a.toml accepted 1"},
		{"broken, then fewer", "a 3\n", []move{{0, "bad\n"}, {300 * ms, "a 2\n"}}, []string{after(300*ms+mergeTime+quietTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"broken, then gone", "a 3\n", []move{{0, "bad\n"}, {300 * ms, "remove"}}, []string{after(300*ms+mergeTime+goneTime, "a.toml removed")}, ""},
		{"empty", "a 3\n", []move{{0, ""}}, nil, "a.toml stale 1"},
		{"broken at first, then fine", "bad\n", []move{{0, "a 1\n"}}, []string{after(mergeTime, "a.toml: a 1")}, "a.toml accepted 1"},
		{"broken at first, then gone", "bad\n", []move{{0, "remove"}}, nil, ""},

		{"rewritten all the time", "a 3\n", rewrites("a 2\n", "a 1\n"), []string{after(busyTime+mergeTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"rewritten all the time, and as before", "a 3\n", rewrites("a 2\n", "a 3\n"), nil, "a.toml accepted 1"},
		{"rewritten all the time, broken between", "a 3\n", rewrites("a 2\n", ""), []string{after(busyTime+mergeTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"a beginning", "a 80\n", []move{{0, "a 8"}}, []string{after(mergeTime+quietTime, "a.toml: a 8")}, "a.toml accepted 1"},

		{"gone", "a 3\n", []move{{0, "remove"}}, []string{after(mergeTime+goneTime, "a.toml removed")}, ""},
		{"gone for a moment", "a 3\n", []move{{0, "remove"}, {290 * ms, "a 3\n"}}, nil, "a.toml accepted 1"},
		{"gone, then fewer", "a 3\n", []move{{0, "remove"}, {290 * ms, "a 2\n"}}, []string{after(290*ms+mergeTime+quietTime, "a.toml: a 2")}, "a.toml accepted 1"},
		{"gone for a moment twice", "a 3\n", []move{{0, "remove"}, {200 * ms, "a 3\n"}, {250 * ms, "remove"}}, []string{after(250*ms+mergeTime+goneTime, "a.toml removed")}, ""},
		{"gone, then back", "a 3\n", []move{{0, "remove"}, {400 * ms, "a 2\n"}}, []string{after(mergeTime+goneTime, "a.toml removed"), after(400*ms+mergeTime, "a.toml: a 2")}, "a.toml accepted 1"},

		{"new", "remove", []move{{0, "a 1\n"}}, []string{after(mergeTime, "a.toml: a 1")}, "a.toml accepted 1"},
		{"new and broken", "remove", []move{{0, "bad\n"}}, nil, "a.toml refused 0"},
		{"new for a moment", "remove", []move{{0, "a"}, {100 * ms, "remove"}}, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.before != "remove" {
				write(t, dir+"/a.toml", tt.before)
			}
			synctest.Test(t, func(t *testing.T) {
				f := blind(t, dir)
				for i, m := range tt.moves {
					time.Sleep(m.at - time.Since(f.sink.start))
					f.move(i, m.text)
				}
				if len(tt.moves) < 5 {
					time.Sleep(900*ms - time.Since(f.sink.start)) // less than blindPoll
				}
				f.stop()
				if got := f.sink.take(); !slices.Equal(got, tt.want) {
					t.Errorf("calls\n got: %q\nwant: %q", got, tt.want)
				}
				if got := f.states(); got != tt.states {
					t.Errorf("files\n got: %s\nwant: %s", got, tt.states)
				}
			})
		})
	}
}

// told has the Source run on with events that are told by the test. Those of w, which was made
// outside of the bubble, nobody reads.
func (f *fixture) told(w *watch.Watcher) chan<- fsnotify.Event {
	events := make(chan fsnotify.Event)
	f.stop()
	f.src.watchErr, f.src.todo.all = "", false
	w.Replay(f.dir, events, nil)
	f.src.watcher = w
	f.stop = f.loop()
	synctest.Wait()
	time.Sleep(unwatchedPoll * 3 / 2) // not just after a step
	f.sink.start = time.Now()
	return events
}

// newUnread returns a watcher for told.
func newUnread(t *testing.T) *watch.Watcher {
	t.Helper()
	dir := t.TempDir()
	w, err := watch.New(dir, disk.NewAsker(dir))
	check(t, err)
	t.Cleanup(w.Close)
	return w
}

// A service that moves to a file of which no event comes, as on a host that is busy, is never absent.
func TestMovedWithoutEvent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/from.toml", "a 1\nb 1\n")
	write(t, dir+"/to.toml", "c 1\n")
	w := newUnread(t)
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		events := f.told(w)
		for i, move := range []struct{ file, text string }{{"from.toml", "a 1\n"}, {"to.toml", "b 1\nc 1\n"}} {
			f.write(move.file, move.text)
			at := time.Unix(1e9+int64(i), 0) // its own for each, see move
			check(t, os.Chtimes(f.path(move.file), at, at))
		}
		events <- fsnotify.Event{Name: f.path("from.toml"), Op: fsnotify.Write}
		time.Sleep(time.Second)
		f.stop()
		want := []string{after(mergeTime+quietTime, "from.toml: a 1; to.toml: b 1, c 1")}
		if got := f.sink.take(); !slices.Equal(got, want) {
			t.Errorf("calls\n got: %q\nwant: %q", got, want)
		}
	})
}

// Which events are waited for. A file of which there are services is looked at
// at once when another takes its name, but not each of many.
func TestEventsMerge(t *testing.T) {
	const ms = time.Millisecond
	type event struct {
		at   time.Duration
		op   fsnotify.Op
		file string
		text string
		from string // renamed from there
	}
	tests := []struct {
		name   string
		events []event
		want   []string
	}{
		{"renamed", []event{{0, fsnotify.Create, "a.toml", "a 2\n", ""}}, []string{after(0, "a.toml: a 2")}},
		{"renamed, with less", []event{{0, fsnotify.Create, "a.toml", "a 0\n", ""}}, []string{after(quietTime, "a.toml: a 0")}},
		{"renamed, with less, from a watched directory", []event{{0, fsnotify.Create, "a.toml", "a 0\n", ".new"}}, []string{after(0, "a.toml: a 0")}},
		{"renamed, broken", []event{{0, fsnotify.Create, "a.toml", "bad\n", ".new"}}, nil},
		{"renamed, then written", []event{{0, fsnotify.Create, "a.toml", "a 2\n", ".new"}, {ms, fsnotify.Write, "a.toml", "a 0\n", ""}}, []string{after(0, "a.toml: a 2"), after(ms+mergeTime+quietTime, "a.toml: a 0")}},
		{"written", []event{{0, fsnotify.Write, "a.toml", "a 2\n", ""}, {2 * ms, fsnotify.Write, "a.toml", "a 3\n", ""}}, []string{after(mergeTime, "a.toml: a 3")}},
		{"written, then renamed", []event{{0, fsnotify.Write, "a.toml", "a 2\n", ""}, {2 * ms, fsnotify.Create, "a.toml", "a 3\n", ""}}, []string{after(2*ms, "a.toml: a 3")}},
		{"new", []event{{0, fsnotify.Create, "c.toml", "c 1\n", ""}}, []string{after(mergeTime, "c.toml: c 1")}},
		{"without services", []event{{0, fsnotify.Create, "none.toml", "c 1\n", ""}}, []string{after(mergeTime, "none.toml: c 1")}},
		{"several", []event{
			{0, fsnotify.Create, "a.toml", "a 2\n", ""}, {ms, fsnotify.Create, "b.toml", "b 2\n", ""}, {2 * ms, fsnotify.Create, "a.toml", "a 3\n", ""},
		}, []string{after(0, "a.toml: a 2"), after(mergeTime, "a.toml: a 3; b.toml: b 2")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/a.toml", "a 1\n")
			write(t, dir+"/b.toml", "b 1\n")
			write(t, dir+"/none.toml", "none\n")
			w := newUnread(t)
			synctest.Test(t, func(t *testing.T) {
				f := blind(t, dir)
				events := f.told(w)
				for i, e := range tt.events {
					time.Sleep(e.at - time.Since(f.sink.start))
					if e.from != "" {
						check(t, os.Remove(f.path(e.file)))
						events <- fsnotify.Event{Name: f.path(e.from), Op: fsnotify.Rename}
					}
					f.write(e.file, e.text)
					at := time.Unix(1e9+int64(i), 0) // its own for each, see move
					check(t, os.Chtimes(f.path(e.file), at, at))
					events <- fsnotify.Event{Name: f.path(e.file), Op: e.op}
					synctest.Wait()
				}
				time.Sleep(time.Second)
				f.stop()
				if got := f.sink.take(); !slices.Equal(got, tt.want) {
					t.Errorf("calls\n got: %q\nwant: %q", got, tt.want)
				}
			})
		})
	}
}

// Nothing is concluded from a directory that cannot be listed, or does not exist:
// not at first, when what is in the kernel might be removed, and not later.
func TestUnreadableDirectoryRemovesNothing(t *testing.T) {
	dir := t.TempDir() + "/conf.d"
	write(t, dir, "not a directory") // as root, permissions would not do
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		defer f.stop()
		time.Sleep(1700 * time.Millisecond) // between two looks
		if got := f.sink.take(); got != nil || f.src.Status().Synced {
			t.Errorf("with an unreadable directory: calls %q; want none", got)
		}

		swap(t, dir, func() { check(t, os.Mkdir(dir, 0o755)); write(t, dir+"/a.toml", "a 1\n") })
		time.Sleep(time.Second)
		if got, want := f.sink.state(), "a.toml: a 1"; got != want || !f.src.Status().Synced {
			t.Errorf("with a directory: sink holds %q; want %q", got, want)
		}

		swap(t, dir, func() { write(t, dir, "not a directory") })
		time.Sleep(10 * time.Second)
		if got, want := f.sink.state(), "a.toml: a 1"; got != want {
			t.Errorf("with an unreadable directory again: sink holds %q; want %q", got, want)
		}

		swap(t, dir, func() {})
		time.Sleep(2 * time.Second)
		if got, want := f.sink.state(), "a.toml: a 1"; got != want {
			t.Errorf("without a directory: sink holds %q; want %q", got, want)
		}
		f.stop()
		checkLog(t, &f.log, dir, `ERROR cannot read the directory of service files, and no last good version exists; not ready until it can be read
INFO the directory of service files can be read
INFO service files read 1
ERROR cannot read the directory of service files; keeping the current services
ERROR cannot read the directory of service files; keeping the current services
`)
	})
}

func swap(t *testing.T, path string, put func()) {
	t.Helper()
	check(t, os.RemoveAll(path))
	put()
}

// One line for each change of a file, however often it is looked at.
func TestEachChangeIsLoggedOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		for i, text := range []string{"a 2\n", "bad one\nbad two\n", "bad two\n", "a 3\n", "hm\na 3\n", "remove"} {
			for range 3 {
				if _, err := os.Stat(f.path("a.toml")); err == nil {
					f.move(i, text)
				}
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(time.Second)
		}
		f.stop()
		checkLog(t, &f.log, dir, `INFO service files read 1
INFO service file accepted DIR/a.toml 1
WARN service file is broken: its services stay as last accepted DIR/a.toml 1
WARN service file is broken: its services stay as last accepted DIR/a.toml 1
INFO service file accepted DIR/a.toml 1
WARN service file accepted with warnings DIR/a.toml 1
INFO service file removed DIR/a.toml 1
`)
		if want := `faults=2 first="` + dir + `/a.toml: bad one"`; !bytes.Contains(f.log.Bytes(), []byte(want)) {
			t.Errorf("the log does not hold %s:\n%s", want, f.log.String())
		}
	})
}

// A text that is cut off for a moment is nothing to tell of, in a new file neither.
func TestMomentaryCutIsNotLogged(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		for i, text := range []string{"", "a", "a 1\n", "a 1\nb", "a 1\nb 1\n"} {
			f.move(i, text)
			time.Sleep(100 * time.Millisecond)
		}
		f.stop()
		checkLog(t, &f.log, dir, `INFO service files read 0
INFO service file accepted DIR/a.toml 1
INFO service file accepted DIR/a.toml 2
`)
	})
}

// Two writes within one tick of the clock of files give one stamp, so a stamp
// is not trusted while the last change is that fresh.
func TestRecentStampIsNotTrusted(t *testing.T) {
	now := time.Unix(1e9, 1)
	for _, tt := range []struct {
		age  time.Duration
		want bool
	}{{time.Second, false}, {time.Second + 1, true}, {time.Minute + 1, false}, {disk.RacyTime, false}, {disk.RacyTime - 1, true}, {0, true}, {-time.Hour, true}} {
		p := probe{at: now, v: &read.Version{}, looked: looked{stamp: disk.Stamp{Ctime: syscall.NsecToTimespec(now.Add(-tt.age).UnixNano())}}}
		f := state{seen: &read.Version{}}
		f.observe(&p, false)
		if f.racy != tt.want {
			t.Errorf("changed %v before it was read: racy = %v; want %v", tt.age, f.racy, tt.want)
		}
	}
}

// Since when a file is as it is: a second fault does not make it stale again.
func TestSinceSurvivesASecondFault(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		defer f.stop()
		start := f.sink.start
		for i, step := range []struct {
			text  string
			since time.Duration
		}{{"a 2\n", mergeTime}, {"bad one\n", time.Second + mergeTime + quietTime}, {"bad two\n", time.Second + mergeTime + quietTime}, {"a 3\n", 3*time.Second + mergeTime}} {
			time.Sleep(time.Duration(i)*time.Second - time.Since(start))
			f.move(i, step.text)
			time.Sleep(500 * time.Millisecond)
			if got := f.src.Status().Files[0].Since.Sub(start); got != step.since {
				t.Errorf("after %q: since %v; want %v", step.text, got, step.since)
			}
		}
	})
}

// A file that did not change is not parsed again, and contents are compared at
// the poll also when nothing else tells of a change.
func TestPollComparesContents(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	write(t, dir+"/b.toml", "b 1\n")
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		parsed := map[string]int{}
		var mu sync.Mutex
		f.stop()
		f.src.parse = func(rules read.Rules, ctx context.Context, path string, data []byte, before read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
			mu.Lock()
			defer mu.Unlock()
			parsed[filepath.Base(path)]++
			return parseLines(rules, ctx, path, data, before)
		}
		f.stop = f.loop()
		f.src.Reload()
		time.Sleep(time.Minute)
		f.stop()
		if len(parsed) != 0 {
			t.Errorf("parsed without a change: %v", parsed)
		}

		// As if no stamp told of it.
		f.write("a.toml", "a 2\n")
		info, err := os.Stat(f.path("a.toml"))
		check(t, err)
		f.src.files["a.toml"].stamp, f.src.files["a.toml"].racy = disk.StampOf(info), false
		f.src.files["b.toml"].racy = false
		f.stop = f.loop()
		defer f.stop()
		time.Sleep(30 * time.Minute)
		if got, want := f.sink.state(), "a.toml: a 1; b.toml: b 1"; got != want {
			t.Fatalf("before the poll the sink holds %q; want %q", got, want)
		}
		time.Sleep(30 * time.Minute)
		if got, want := f.sink.state(), "a.toml: a 2; b.toml: b 1"; got != want {
			t.Errorf("after the poll the sink holds %q; want %q", got, want)
		}
		if len(parsed) != 1 || parsed["a.toml"] != 1 {
			t.Errorf("parsed %v; want a.toml once", parsed)
		}
	})
}

// A file that was left alone for quietTime, to the moment, begins to change again; where a
// version of it waits it has been changing all along.
func TestQuietFileBeginsToChangeAgain(t *testing.T) {
	begin := time.Unix(1e9, 0)
	for _, tt := range []struct {
		quiet time.Duration
		next  *read.Version
		want  time.Duration // after begin
	}{
		{quietTime - 1, nil, 0},
		{quietTime, nil, quietTime},
		{quietTime, read.Gone, 0},
	} {
		f := state{pending: pending{next: tt.next}}
		f.noteChange(begin)
		f.noteChange(begin.Add(tt.quiet))
		if got := f.changingSince.Sub(begin); got != tt.want || f.changedAt != begin.Add(tt.quiet) {
			t.Errorf("changed again after %v: changing since %v, want %v", tt.quiet, got, tt.want)
		}
	}
}

// A look just before that counts nothing.
func TestEarlyLookDecidesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 3\n")
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		f.move(0, "a 2\n")
		time.Sleep(quietTime - time.Millisecond)
		f.src.Reload()
		time.Sleep(500 * time.Millisecond)
		f.stop()
		want := []string{after(mergeTime+quietTime, "a.toml: a 2")}
		if got := f.sink.take(); !slices.Equal(got, want) {
			t.Errorf("calls\n got: %q\nwant: %q", got, want)
		}
	})
}
