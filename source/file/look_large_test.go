package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// long makes a text large without another service.
func long(text string) string { return text + strings.Repeat("none\n", largeSize/5+1) }

// held is a parser of texts of services that waits for some of them: before returns when
// a text may be read on.
func held(before func(ctx context.Context, text string)) read.Parser {
	return func(rules read.Rules, ctx context.Context, path string, data []byte, was read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
		before(ctx, string(data))
		if ctx.Err() != nil {
			return nil, []source.Fault{read.Unreadable(path, ctx.Err())}, nil
		}
		return parseLines(rules, ctx, path, data, was)
	}
}

// besides runs a Source with these files, a.toml small and b.toml large, which then waits
// as before says.
func besides(t *testing.T, before func(ctx context.Context, text string)) *fixture {
	f := blind(t, t.TempDir())
	f.stop()
	f.src.parse = held(before)
	f.write("a.toml", "a 1\n")
	f.stop = f.loop()
	f.again()
	synctest.Wait()
	f.sink.take()
	return f
}

// again has everything looked at, as an event does, and lets it be done.
func (f *fixture) again() {
	f.src.Reload()
	time.Sleep(2 * mergeTime)
	synctest.Wait()
}

// put gives a file another text in one step.
func (f *fixture) put(name, text string) {
	write(f.T, f.path(".new"), text)
	check(f.T, os.Rename(f.path(".new"), f.path(name)))
	f.again()
}

func (f *fixture) holds(when, want string) {
	f.Helper()
	if got := f.sink.state(); got != want {
		f.Errorf("%s: the sink holds\n got: %s\nwant: %s", when, got, want)
	}
}

// A change of a small file counts while a large one is being read, also when more
// large ones wait than can be read at a time.
func TestSmallBesideLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				<-release
			}
		})
		defer f.stop()
		for i := range 2 * cap(f.src.slots) {
			f.put(fmt.Sprintf("b%d.toml", i), long(fmt.Sprintf("b%d 1\n", i)))
		}
		f.holds("while large files are read", "a.toml: a 1")
		f.put("a.toml", "a 2\n")
		f.put("c.toml", "c 1\n")
		f.holds("after a change of small ones", "a.toml: a 2; c.toml: c 1")
		close(release)
		pass(time.Second)
		if got := f.sink.state(); strings.Count(got, ".toml: b") != 2*cap(f.src.slots) {
			t.Errorf("after the large ones were read the sink holds %s", got)
		}
		if n := len(f.src.largeReads); n > 0 {
			t.Errorf("%d files are still being read", n)
		}
	})
}

// Texts of large files are in memory as far as there is room for them, and the others wait for it.
func TestLargeTextsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parsing atomic.Int32
		release := make(chan struct{})
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				parsing.Add(1)
				<-release
			}
		})
		defer f.stop()
		f.src.slots = make(chan struct{}, 4)
		check(t, f.src.texts.Acquire(t.Context(), maxTexts-2*int64(len(long("b0 1\n")))))
		for i := range cap(f.src.slots) {
			f.put(fmt.Sprintf("b%d.toml", i), long(fmt.Sprintf("b%d 1\n", i)))
		}
		if n := parsing.Load(); n != 2 {
			t.Errorf("%d texts are parsed, with room for 2", n)
		}
		close(release)
		pass(time.Second)
		f.holds("with room again", "a.toml: a 1; b0.toml: b0 1; b1.toml: b1 1; b2.toml: b2 1; b3.toml: b3 1")
	})
}

// What changes while it is read is not used, and what has become of it is.
func TestOvertakenReadIsDiscarded(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(f *fixture)
		want string
	}{
		"written again": {func(f *fixture) { f.put("b.toml", long("b 2\n")) }, "a.toml: a 1; b.toml: b 2"},
		"made small":    {func(f *fixture) { f.put("b.toml", "b 3\n") }, "a.toml: a 1; b.toml: b 3"},
		"broken":        {func(f *fixture) { f.put("b.toml", long("bad\n")) }, "a.toml: a 1"},
		"removed":       {func(f *fixture) { check(f.T, os.Remove(f.path("b.toml"))); f.again() }, "a.toml: a 1"},
		"judged again":  {func(f *fixture) { f.src.Revalidate(); f.put("b.toml", long("b 4\n")) }, "a.toml: a 1; b.toml: b 4"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := besides(t, func(ctx context.Context, text string) {
					if strings.HasPrefix(text, "b 1\n") {
						<-ctx.Done() // never read in earnest
					}
				})
				defer f.stop()
				f.put("b.toml", long("b 1\n"))
				tt.then(f)
				time.Sleep(time.Second)
				f.holds("in the end", tt.want)
				for _, call := range f.sink.take() {
					if strings.Contains(call, "b 1") {
						t.Errorf("the sink was told %q", call)
					}
				}
			})
		})
	}
}

// New rules are not asked of what is being read by the old ones.
func TestRevalidateWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				if reads++; reads == 1 {
					<-ctx.Done()
				}
			}
		})
		defer f.stop()
		f.put("b.toml", long("b 1\n"))
		f.src.Revalidate()
		time.Sleep(time.Second)
		f.holds("after Revalidate", "a.toml: a 1; b.toml: b 1")
	})
}

// Reload reads again also what is being read.
func TestReloadReadsAgainWhatIsBeingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := besides(t, func(_ context.Context, text string) {
			if strings.HasPrefix(text, "b 1\n") {
				<-release
			}
		})
		defer f.stop()
		f.put("b.toml", long("b 1\n"))
		f.again()
		if l := f.src.largeReads["b.toml"]; l == nil || !l.lookAgain || !l.hash {
			t.Errorf("after Reload: %+v; want it to be read again", l)
		}
		close(release)
		pass(time.Second)
		f.holds("in the end", "a.toml: a 1; b.toml: b 1")
		if n := len(f.src.largeReads); n > 0 {
			t.Errorf("%d files are still being read", n)
		}
	})
}

// A large file that is written again and again, faster than it can be read, counts
// nevertheless.
func TestAlwaysRewrittenLargeFileCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				select {
				case <-time.After(300 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
		defer f.stop()
		for i := range 40 {
			f.put("b.toml", long(fmt.Sprintf("b %d\n", i)))
			time.Sleep(90 * time.Millisecond)
		}
		if calls := f.sink.take(); len(calls) < 1 || len(calls) > 8 {
			t.Errorf("after 4 s the sink was told %q; want some of 40 versions", calls)
		}
		time.Sleep(time.Second)
		f.holds("in the end", "a.toml: a 1; b.toml: b 39")
	})
}

// A service that moves to a large file is not absent while that is read, as long as anything may wait.
func TestMoveToLarge(t *testing.T) {
	for name, tt := range map[string]struct {
		moves func(h *host) // while b.toml is not read
		want  string
	}{
		"the large one first": {func(h *host) {
			h.put("b.toml", long("b 1\nx 1\n"))
			h.put("a.toml", "a 1\n")
		}, "a 1, b 1, x 1"},
		"the small one removed": {func(h *host) {
			h.put("b.toml", long("b 1\nx 1\n"))
			check(h.T, os.Remove(h.path("a.toml")))
			h.again()
		}, "b 1, x 1"},
		"both at once": {func(h *host) {
			write(h.T, h.path(".a"), "a 1\n")
			write(h.T, h.path(".b"), long("b 1\nx 1\n"))
			check(h.T, os.Rename(h.path(".a"), h.path("a.toml")))
			check(h.T, os.Rename(h.path(".b"), h.path("b.toml")))
			h.again()
		}, "a 1, b 1, x 1"},
		"and the large one written again": {func(h *host) {
			h.put("b.toml", long("b 1\nx 1\n"))
			h.put("a.toml", "a 1\n")
			h.put("b.toml", long("b 2\nx 1\n"))
		}, "a 1, b 2, x 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(h *host) {
				h.write("a.toml", "a 1\nx 1\n")
				h.write("b.toml", long("b 1\n"))
				var holds atomic.Bool
				release := make(chan struct{})
				h.before = func(ctx context.Context, text string) {
					if holds.Load() && strings.HasPrefix(text, "b") {
						select {
						case <-release:
						case <-ctx.Done():
						}
					}
				}
				h.start()
				defer h.stop()
				moment()
				holds.Store(true)
				before := len(h.steps())
				tt.moves(h)
				time.Sleep(maxWait - maxWait/4)
				close(release)
				moment()
				for _, s := range h.steps()[before:] {
					if !strings.Contains(s, "x 1") {
						t.Errorf("x is absent: %q", h.steps()[before:])
					}
				}
				if now, _ := h.sink.look(); now != tt.want {
					t.Errorf("in the end %q; want %q", now, tt.want)
				}
			})
		})
	}
}

func (h *host) steps() []string {
	_, steps := h.sink.look()
	return steps
}

// A removal does not wait forever for a large file that nobody can read.
func TestRemovalBesideLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				<-ctx.Done()
			}
		})
		defer f.stop()
		f.put("b.toml", long("b 1\n"))
		f.put("a.toml", "none\n")
		time.Sleep(maxWait - maxWait/4)
		f.holds("before", "a.toml: a 1")
		time.Sleep(time.Second)
		f.holds("after", "a.toml: ")
	})
}

// The end of Run stops the reading of a large file, and begins nothing.
func TestStopEndsReadingLargeFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				<-ctx.Done()
			}
		})
		f.put("b.toml", long("b 1\n"))
		f.put("c.toml", long("b 1\n"))
		begin := time.Now()
		f.stop()
		if took := time.Since(begin); took > 0 {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(2 * time.Minute)
		f.holds("in the end", "a.toml: a 1")
	})
}

// What was read in part when the start was stopped is not handed on.
func TestStopAtStart(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.toml"), "a 1\n")
	write(t, filepath.Join(dir, "b.toml"), "b 1\n")
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, dir: dir, sink: newRecorder(t, dir), src: New(Options{Dir: dir, StateDir: t.TempDir()})}
		f.src.parse = held(func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b") {
				<-ctx.Done()
			}
		})
		stop, begin := f.loop(), time.Now()
		synctest.Wait()
		stop()
		if took := time.Since(begin); took > 0 {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(2 * time.Minute)
		if got := f.sink.take(); len(got) > 0 {
			t.Errorf("the sink was told %q", got)
		}
	})
}

// Reading stops between two services, and what was read does not pass for the file.
func TestParseStopsBetweenServices(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	services, faults, _ := read.Rules{}.ParseNew(ctx, "a.toml", []byte(serviceFrom("a", "")+serviceFrom("b", "")), nil)
	if want := "a.toml: cannot be read: context canceled"; services != nil || len(faults) != 1 || faults[0].String() != want {
		t.Errorf("services %v, faults %v; want none, and %s", services, faults, want)
	}
}

// What a version no longer claims, so that another file may.
func TestFreesReleasedClaims(t *testing.T) {
	const web = "[[services]]\nname = 'web'\nvips = ['10.96.0.10']\nports = [{ port = 80, node_port = 30080 }]\nendpoints = ['192.168.10.11']\n"
	for _, tt := range []struct {
		name, old, new string
		want           bool
	}{
		{"the same", web, "", false},
		{"an endpoint less", "'192.168.10.11'", "", false},
		{"another address too", "['10.96.0.10']", "['10.96.0.9', '10.96.0.10']", false},
		{"another target", "{ port = 80,", "{ port = 80, target_port = 8080,", false},
		{"another name", "'web'", "'www'", true},
		{"another address", "10.96.0.10", "10.96.0.11", true},
		{"another port", "port = 80,", "port = 81,", true},
		{"no node port", ", node_port = 30080", "", true},
	} {
		read := func(text string) *read.Version {
			return read.NewVersion(t.Context(), "a.toml", []byte(text), nil, read.Rules{}, read.Rules.ParseNew, nil)
		}
		text := web
		if tt.new != "" || tt.old != web {
			text = strings.Replace(web, tt.old, tt.new, 1)
		}
		v := read(text)
		if v.Broken {
			t.Fatalf("%s: %v", tt.name, v.Faults)
		}
		if got := read(web).ClaimsBeyond(v); got != tt.want {
			t.Errorf("%s: %v; want %v", tt.name, got, tt.want)
		}
	}
}

// What waits of a file that is being read is due when that has ended, not before: until
// then nothing looks at the file because of it.
func TestWaitsForItsReading(t *testing.T) {
	w := newUnread(t)
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := besides(t, func(ctx context.Context, text string) {
			if strings.HasPrefix(text, "b 0\n") {
				<-release
			}
		})
		defer func() { f.stop() }()
		f.put("b.toml", long("b 2\n"))
		events := f.told(w)
		tell := func(name, text string) { // written in place
			f.write(name, text)
			events <- fsnotify.Event{Name: f.path(name), Op: fsnotify.Write}
			time.Sleep(4 * mergeTime)
			synctest.Wait()
		}
		tell("b.toml", long("b 1\n")) // waits
		tell("b.toml", long("b 0\n")) // is read
		time.Sleep(2 * quietTime)
		tell("a.toml", "a 2\n")
		f.holds("while b.toml is read", "a.toml: a 2; b.toml: b 2")
		if l := f.src.largeReads["b.toml"]; l == nil || l.lookAgain {
			t.Errorf("reading of b.toml: %+v; want one that nothing is to follow", l)
		}
		close(release)
		time.Sleep(time.Second)
		f.holds("once it was read", "a.toml: a 2; b.toml: b 0")
	})
}

// A file whose held removal went through while it was read again is a new one.
func TestReadOutlivesItsFile(t *testing.T) {
	s := New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	l := &largeRead{probe: probe{name: "big.toml"}, ended: true, cancel: func() {}}
	s.largeReads["big.toml"] = l
	todo := newWork()
	if probes := s.endedReads(todo); len(probes) > 0 || !todo.names["big.toml"] || len(s.largeReads) > 0 {
		t.Errorf("%d probes, to be looked at: %v, %d readings", len(probes), todo.names, len(s.largeReads))
	}
}
