package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
)

// A served host has a server in place of its directory.
type served struct {
	*host
	sets    chan remote.Set
	reports chan error
	options Options // more
}

// Run implements remote.Fetcher.
func (s *served) Run(ctx context.Context, give func(remote.Set), report func(error)) error {
	for {
		select {
		case set := <-s.sets:
			give(set)
			report(nil)
		case err := <-s.reports:
			report(err)
		case <-ctx.Done():
			return nil
		}
	}
}

// serving runs a test with a server, in a bubble. The test starts and stops the source.
func serving(t *testing.T, test func(s *served)) {
	inBubble(t, func(h *host) { test(&served{host: h, sets: make(chan remote.Set), reports: make(chan error)}) })
}

func (s *served) start() {
	o := s.options
	o.Name, o.Server, o.Fetcher, o.StateDir = "http", "https://h/index.json", s, s.state
	o.Log, o.Guard = slog.New(slog.NewTextHandler(&s.log, nil)), s.guard
	o.Rules = read.Rules{Limits: s.limits, GuardPrograms: s.guardPrograms, Owners: s.owners}
	s.src = New(o)
	s.host.sink = newTracked(s.src)
	if !s.real {
		s.src.parse = func(rules read.Rules, ctx context.Context, path string, data []byte, before read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
			s.parsed.Add(1)
			return parseLines(rules, ctx, path, data, before)
		}
		s.src.parseCopy = s.src.parse
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.src.Run(ctx, s.host.sink) }()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("Run: %v", err)
		}
	}
}

// set returns a set with these texts, by the ends of their names.
func set(texts map[string]string) (set remote.Set) {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		set.Texts = append(set.Texts, remote.Text{Name: "https://h/" + name, Data: []byte(texts[name])})
	}
	return set
}

// give has the server have these texts.
func (s *served) give(texts map[string]string) { s.giveSet(set(texts)) }

func (s *served) giveSet(set remote.Set) {
	s.sets <- set
	pass(100 * time.Millisecond)
}

// use checks what is in use, and how many steps it took since the last check.
func (s *served) use(when, want string, steps int) {
	s.Helper()
	got, all := s.host.sink.look()
	s.host.sink.mu.Lock()
	s.host.sink.steps = nil
	s.host.sink.mu.Unlock()
	all = slices.DeleteFunc(all, func(step string) bool { return step == "synced" })
	if got != want || len(all) != steps {
		s.Errorf("%s: %q in use after steps %q, want %q after %d\nstatus: %+v", when, got, all, want, steps, s.src.Status())
	}
}

// warns checks the only warning of the status; empty: there is none.
func (s *served) warns(when, want string) {
	s.Helper()
	st := s.src.Status()
	if want == "" && len(st.Warnings) > 0 || want != "" && !strings.Contains(strings.Join(st.Warnings, ""), want) {
		s.Errorf("%s: warnings %q, want %q", when, st.Warnings, want)
	}
}

const (
	heldText  = "HELD: the answer of the server is not used, services stay as last known: it lists no service files, and 2 were known; svcproxy confirm lets it through"
	staleText = "STALE: the server has not sent all of its texts since the start at 2000-01-01"
)

// A set is one step. What vanishes from it is gone at once, and what is broken in it stays.
func TestSetIsOneStep(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n", "c.toml": "c 1\n"})
		s.use("at first", "a 1, b 1, c 1", 1)
		s.give(map[string]string{"a.toml": "a 2\n", "b.toml": "bad\n", "d.toml": "d 1\n"})
		s.use("with one changed, one broken, one new and one gone", "a 2, b 1, d 1", 1)
		if got, want := s.faults(), "https://h/b.toml: bad"; got != want {
			t.Errorf("faults %q, want %q", got, want)
		}
		s.parsed.Store(0)
		s.give(map[string]string{"a.toml": "a 2\n", "b.toml": "bad\n", "d.toml": "d 1\n"})
		s.use("the same again", "a 2, b 1, d 1", 0)
		if n := s.parsed.Load(); n != 0 {
			t.Errorf("parsed %d texts that are known", n)
		}
		s.give(map[string]string{"a.toml": "a 2\n", "d.toml": "b 1\nd 1\n"})
		s.use("a service that moves", "a 2, b 1, d 1", 1)
		st := s.src.Status()
		if c := st.Connection; c == nil || !c.Connected || c.Server != "https://h/index.json" || st.Source != "http" || !st.Synced {
			t.Errorf("status %+v, connection %+v", st, c)
		}
		s.reports <- errors.New("connection refused")
		synctest.Wait()
		if c := s.src.Status().Connection; c.Connected || c.Error != "connection refused" {
			t.Errorf("connection %+v", c)
		}
		s.use("with a server that does not answer", "a 2, b 1, d 1", 0)
		s.stop()
	})
}

// Many texts in one set are one step, and one of them that changes is read alone.
func TestLargeSets(t *testing.T) {
	serving(t, func(s *served) {
		const n = 10_000
		texts := map[string]string{}
		for i := range n {
			texts[fmt.Sprintf("s%05d.toml", i)] = fmt.Sprintf("s%05d 1\n", i)
		}
		s.start()
		is := set(texts)
		s.giveSet(is)
		count := func(when string, services, parsed int) {
			t.Helper()
			_, steps := s.host.sink.look()
			steps = slices.DeleteFunc(steps, func(step string) bool { return step == "synced" })
			if len(steps) != 1 || strings.Count(steps[0], " 1")+strings.Count(steps[0], " 2") != services || s.parsed.Load() != int32(parsed) {
				t.Errorf("%s: %d steps, %d texts parsed; want one of %d services, and %d parsed", when, len(steps), s.parsed.Load(), services, parsed)
			}
			s.host.sink.mu.Lock()
			s.host.sink.steps = nil
			s.host.sink.mu.Unlock()
			s.parsed.Store(0)
		}
		count("at first", n, n)
		is.Texts = slices.Clone(is.Texts)
		is.Texts[7].Data = []byte("s00007 2\n")
		s.giveSet(is)
		count("with one changed", n, 1)
		is.Texts = append(slices.Clone(is.Texts[:5000]), remote.Text{Name: "https://h/t.toml", Data: []byte("t 1\n")})
		s.giveSet(is)
		count("with one new, and half of them gone", 5001, 1)
		s.stop()
	})
}

// However many texts change in one step, the log has room for what else is said.
func TestLinesOfLargeSets(t *testing.T) {
	serving(t, func(s *served) {
		const n = 1000
		s.start()
		logged := 0
		expect := func(what, text string) {
			t.Helper()
			texts := map[string]string{}
			for i := range n {
				if text != "" {
					texts[fmt.Sprintf("s%05d.toml", i)] = fmt.Sprintf(text, i)
				}
			}
			is := set(texts)
			is.Unknown = []string{"https://g/"} // so that none is no doubt
			s.giveSet(is)
			lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")[logged:]
			logged += len(lines)
			more := fmt.Sprintf(`msg="more service files changed; svcproxy status lists those at fault" files=%d`, n-maxLines)
			if len(lines) > maxLines+3 || !strings.Contains(strings.Join(lines, "\n"), more) {
				t.Errorf("%s: %d lines, want %d and one with %s; the last: %s", what, len(lines), maxLines, more, lines[len(lines)-1])
			}
		}
		expect("broken", "?%05d\n")
		expect("corrected", "s%05d 1\n")
		expect("broken again", "?%05d 2\n")
		expect("gone", "")
		s.stop()
	})
}

// On however many cores, only some large texts are parsed at a time: each may take many times its size of memory.
func TestLargeTextsInMemory(t *testing.T) {
	cores := runtime.GOMAXPROCS(8)
	defer runtime.GOMAXPROCS(cores)
	serving(t, func(s *served) {
		var now, most atomic.Int32
		parse := func(read.Rules, context.Context, string, []byte, read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			now.Add(-1)
			return nil, nil, nil
		}
		s.start()
		s.src.parse = parse
		large := make([]byte, s.src.rules.MaxSize())
		is := set(map[string]string{"a.toml": "", "b.toml": "", "c.toml": "", "d.toml": "", "e.toml": ""})
		for i := range is.Texts {
			is.Texts[i].Data = large
		}
		s.giveSet(is)
		pass(time.Minute)
		want := int32(maxTexts / len(large))
		if n := most.Load(); n != want || len(s.src.Status().Files) != len(is.Texts) {
			t.Errorf("%d of %d texts were parsed at a time, want %d", n, len(s.src.Status().Files), want)
		}
		s.stop()
	})
}

// What cannot be a set is not used, and the next one is.
func TestSetWithUnexpectedNames(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a.toml": "a 1\n"})
		for _, names := range [][]string{{"a.toml"}, {"https://h/a"}, {"https://h/a\n.toml"}, {"https://h/b.toml", "https://h/a.toml"}, {"https://h/a.toml", "https://h/a.toml"}, {"https://h/" + strings.Repeat("a", 1024) + ".toml"}} {
			var bad remote.Set
			for _, name := range names {
				bad.Texts = append(bad.Texts, remote.Text{Name: name, Data: []byte("a 2\n")})
			}
			s.src.server.give(bad)
			pass(time.Second)
			if c := s.src.Status().Connection; !strings.HasPrefix(c.Error, "reading the service files of the server: unexpected name ") {
				t.Errorf("names %q: connection %+v", names, c)
			}
		}
		s.use("with those", "a 1", 1)
		s.give(map[string]string{"a.toml": "a 2\n"})
		s.use("after them", "a 2", 1)
		s.stop()
	})
}

// A text is judged again when it was signed, or is not any more, and when settings change.
func TestSharesOfTextsOfServer(t *testing.T) {
	serving(t, func(s *served) {
		var owners atomic.Pointer[[]read.Owner]
		all := []read.Owner{{Sources: []string{"https://h/"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.96.1.0/24")}, Namespaces: []string{"*"}, Allow: []string{"exec"}}}
		owners.Store(&all)
		s.real, s.owners = true, func() []read.Owner { return *owners.Load() }
		text := "[[services]]\nname = 'a'\nvips = ['10.96.1.1']\nports = [{ port = 80 }]\nendpoints = ['192.0.2.1']\nhealth_check = { type = 'exec', command = ['/bin/true'] }\n"
		is := func(when, states, fault string) {
			t.Helper()
			if got, faults := s.states(), s.faults(); got != states || !strings.Contains(faults, fault) || fault == "" && faults != "" {
				t.Errorf("%s: %s with faults %q; want %s with %q", when, got, faults, states, fault)
			}
		}
		give := func(signed bool) {
			set := set(map[string]string{"a.toml": text})
			set.Texts[0].Signed = signed
			s.giveSet(set)
		}
		s.start()
		give(false)
		is("not signed", "a.toml refused 0", "https://h/a.toml:6:43: svcproxy runs no program that this file names: allow of owners[0]")
		give(true)
		is("signed", "a.toml accepted 1", "")
		give(false)
		is("not signed any more", "a.toml stale 1", "is not signed")
		give(true)
		moment()
		s.stop()
		s.start()
		pass(time.Second)
		is("without the server", "a.toml accepted 1", "")
		give(false)
		is("and then not signed", "a.toml stale 1", "is not signed")
		give(true)
		is("and then signed", "a.toml accepted 1", "")
		owners.Store(&[]read.Owner{{Files: []string{"*"}, Namespaces: []string{"*"}}})
		s.src.Revalidate()
		pass(time.Second)
		is("of no owner any more", "a.toml stale 1", `has this source, so it may claim nothing; write [[owners]] with "https://h/a.toml" in sources`)
		s.stop()
		s.start()
		pass(time.Second)
		is("of no owner, without the server", "a.toml accepted 1", "svcproxy runs no program that this file names")
		owners.Store(&all)
		give(true)
		is("of its owner again", "a.toml accepted 1", "")
		if s.src.files["https://h/a.toml"].used.Services[0].HealthCheck.Barred != "" {
			t.Error("its program does not run")
		}
		s.stop()
	})
}

// Whether a text is signed is part of what is judged, also where nothing else of it changes.
func TestSignatureOfText(t *testing.T) {
	serving(t, func(s *served) {
		s.real, s.owners = true, func() []read.Owner {
			return []read.Owner{{Sources: []string{"https://h/"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.96.1.0/24")}, Namespaces: []string{"*"}, Allow: []string{"announce"}}}
		}
		s.start()
		for i, want := range []string{"a.toml refused 0", "a.toml accepted 1", "a.toml stale 1", "a.toml accepted 1"} {
			set := set(map[string]string{"a.toml": "[[services]]\nname = 'a'\nvips = ['10.96.1.1']\nports = [{ port = 80 }]\nendpoints = ['192.0.2.1']\nannounce = ['bgp']\n"})
			set.Texts[0].Signed = i%2 == 1
			if s.giveSet(set); s.states() != want {
				t.Errorf("signed %v: %s with faults %q, want %s", i%2 == 1, s.states(), s.faults(), want)
			}
		}
		s.stop()
	})
}

// A start without the server uses what was last accepted within a second, and says so.
func TestStartWithoutServer(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n"})
		s.give(map[string]string{"a.toml": "a 2\n", "b.toml": "bad\n"})
		moment()
		s.stop()

		s.start()
		pass(time.Second)
		s.use("without the server", "a 2, b 1", 1)
		s.warns("without the server", staleText)
		if got, want := s.states(), "a.toml accepted 1; b.toml accepted 1"; got != want {
			t.Errorf("files %q, want %q", got, want)
		}
		s.give(map[string]string{"a.toml": "a 2\n", "b.toml": "b 3\n"})
		s.use("when it is back", "a 2, b 3", 1)
		s.warns("when it is back", "")
		s.stop()

		s.start()
		s.give(map[string]string{"a.toml": "a 2\n", "c.toml": "c 1\n"})
		s.use("with a server that has changed meanwhile", "a 2, c 1", 2)
		s.stop()
	})
}

// Nothing is served before the first answer where nothing is known, unless other sources are.
func TestFirstStartWithoutServer(t *testing.T) {
	for _, beside := range []bool{false, true} {
		serving(t, func(s *served) {
			s.options.Beside = beside
			s.start()
			pass(time.Minute)
			if st := s.src.Status(); st.Synced != beside || st.Connection.Connected {
				t.Errorf("beside others %v: synced %v, %+v", beside, st.Synced, st.Connection)
			}
			s.give(map[string]string{"a.toml": "a 1\n"})
			s.use("when it answers", "a 1", map[bool]int{true: 2, false: 1}[beside])
			s.warns("when it answers", "")
			s.stop()
		})
	}
}

// A server that lists nothing any more takes nothing away, also after a restart, until it is full again or confirmed.
func TestEmptiedServerIsHeld(t *testing.T) {
	two := map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n"}
	for _, restart := range []bool{false, true} {
		serving(t, func(s *served) {
			s.start()
			s.give(two)
			if restart {
				moment()
				s.stop()
				s.start()
				s.parsed.Store(0)
			}
			s.use("at first", map[bool]string{true: "", false: "a 1, b 1"}[restart], map[bool]int{false: 1}[restart])
			s.give(nil)
			s.use("emptied", "a 1, b 1", map[bool]int{true: 1}[restart])
			s.warns("emptied", heldText)
			if n := s.src.Held(); n != 1 {
				t.Errorf("%d held", n)
			}
			s.give(two)
			s.use("full again", "a 1, b 1", 0)
			s.warns("full again", "")
			s.give(nil)
			c := s.confirm()
			s.use("confirmed", "", 1)
			s.warns("confirmed", "")
			if !c.Server || s.src.Held() != 0 {
				t.Errorf("confirmation %+v, %d held", c, s.src.Held())
			}
			s.give(map[string]string{"c.toml": "c 1\n"})
			s.give(map[string]string{"c.toml": "none\n"})
			s.use("an explicit list without services", "", 2)
			s.give(map[string]string{"c.toml": "none\n", "d.toml": "d 1\n"})
			s.give(nil)
			s.src.SetAllowEmpty([]string{"http"})
			pass(time.Second)
			s.use("allowed", "", 2)
			s.stop()
		})
	}
}

// Of a server with several answers, one that lists nothing, or did not come yet, takes nothing away.
func TestAnswerOfSeveral(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a/a.toml": "a 1\n", "b/b.toml": "b 1\n"})
		one := set(map[string]string{"b/b.toml": "b 2\n"})
		one.Empty = []string{"https://h/a/index.json"}
		s.giveSet(one)
		s.use("an answer that lists nothing", "a 1, b 2", 2)
		s.warns("an answer that lists nothing", `"https://h/a/index.json" lists no service files, and 1 of 2 that were known are missing`)
		s.src.SetAllowEmpty([]string{"https://h/a/index.json"})
		pass(time.Second)
		s.use("allowed", "b 2", 1)
		moment()
		s.stop()

		s.start()
		part := set(map[string]string{"c/c.toml": "c 1\n"})
		part.Partial = true
		s.giveSet(part)
		s.use("before all answers have come", "b 2, c 1", 2)
		s.warns("before all answers have come", staleText)
		s.give(map[string]string{"c/c.toml": "c 1\n"})
		s.use("when they have", "c 1", 1)
		s.warns("when they have", "")
		s.stop()
	})
}

// An older set, as of a backup, takes nothing away.
func TestOlderSetIsHeld(t *testing.T) {
	serving(t, func(s *served) {
		version := func(v string, texts map[string]string) remote.Set {
			set := set(texts)
			set.Version, set.Counter = v, "cluster 1"
			return set
		}
		s.start()
		s.giveSet(version("7", map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n"}))
		s.giveSet(version("5", map[string]string{"a.toml": "a 1\n"}))
		s.use("of a backup", "a 1, b 1", 1)
		s.warns("of a backup", "its list of service files is of version 5, before 7, and lacks 1 of 2")
		s.giveSet(version("6", map[string]string{"a.toml": "a 2\n"}))
		s.use("that goes on", "a 1, b 1", 0)
		moment()
		s.stop()
		s.start()
		s.giveSet(version("6", map[string]string{"a.toml": "a 2\n"}))
		pass(time.Second)
		s.use("after a restart", "a 1, b 1", 1)
		s.warns("after a restart", "its list of service files is of version 6, before 7, and lacks 1 of 2")
		s.confirm()
		s.use("confirmed", "a 2", 1)
		s.giveSet(version("6", map[string]string{"a.toml": "a 2\n", "b.toml": "b 1\n"}))
		s.giveSet(version("5", map[string]string{"a.toml": "a 3\n", "b.toml": "b 1\n"}))
		s.use("older and whole", "a 3, b 1", 2)
		s.giveSet(version("6", map[string]string{"c.toml": "c 1\n"}))
		s.use("after that", "c 1", 1)
		s.warns("after that", "")

		s.giveSet(version("4", map[string]string{"d.toml": "d 1\n"}))
		s.use("of another backup", "c 1", 0)
		moment()
		s.stop()
		s.start()
		s.giveSet(version("9", map[string]string{"d.toml": "d 1\n"}))
		pass(time.Second)
		s.use("of it with a higher version, after a restart", "c 1", 1)
		s.warns("of it with a higher version", "its list of service files was of a version before 6, and lacks 1 of 1")
		s.giveSet(version("10", map[string]string{"c.toml": "c 2\n", "d.toml": "d 1\n"}))
		s.use("that lacks nothing", "c 2, d 1", 1)
		s.warns("that lacks nothing", "")
		s.giveSet(version("11", map[string]string{"d.toml": "d 1\n"}))
		s.use("after that one", "d 1", 1)

		other := version("12", map[string]string{"e.toml": "e 1\n"})
		other.Counter = "cluster 2"
		s.giveSet(other)
		s.use("of another server", "d 1", 0)
		s.warns("of another server", "its list of service files is of cluster 2, was of cluster 1, and lacks 1 of 1")
		s.confirm()
		s.use("of another server, confirmed", "e 1", 1)
		s.stop()
	})
}

// A text that is larger than a file may be is refused, and no other.
func TestLargeText(t *testing.T) {
	serving(t, func(s *served) {
		s.limits.FileSize = 100
		s.start()
		s.give(map[string]string{"a.toml": "a 1\n" + strings.Repeat("#", 100), "b.toml": "b 1\n"})
		s.use("at first", "b 1", 1)
		if got := s.states() + " " + s.faults(); !strings.Contains(got, "a.toml refused 0") || !strings.Contains(got, "more than 100 bytes") {
			t.Error(got)
		}
		s.stop()
	})
}

// A server that was emptied and is filled bit by bit takes nothing away meanwhile.
func TestFilledAgain(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n"})
		s.give(nil)
		s.give(map[string]string{"a.toml": "a 2\n"})
		s.use("filled in part", "a 2, b 1", 2)
		s.warns("filled in part", `"http" listed no service files, and 1 of 2 that were known are missing`)
		s.give(map[string]string{"a.toml": "a 2\n", "b.toml": "b 2\n"})
		s.use("full again", "a 2, b 2", 1)
		s.warns("full again", "")
		s.give(map[string]string{"a.toml": "a 2\n"})
		s.use("after that", "a 2", 1)
		s.stop()
	})
}

// The guard, rollback and a trial are as for files.
func TestDecisionsOnTextsOfServer(t *testing.T) {
	serving(t, func(s *served) {
		s.guard = Guard{Removals: 20}
		texts := map[string]string{}
		for i := range 10 {
			texts[fmt.Sprintf("s%d.toml", i)] = fmt.Sprintf("s%d 1\n", i)
		}
		s.start()
		s.give(texts)
		for i := range 5 {
			delete(texts, fmt.Sprintf("s%d.toml", i))
		}
		s.give(texts)
		if n := s.src.Held(); n != 5 || !strings.Contains(s.faults(), "https://h/s0.toml: this change is held") {
			t.Errorf("%d held: %s", n, s.faults())
		}
		s.stop()
		s.start()
		s.give(texts)
		if n := s.src.Held(); n != 5 {
			t.Errorf("%d held after a restart: %s", n, s.faults())
		}
		c := s.confirm()
		s.use("confirmed", "s5 1, s6 1, s7 1, s8 1, s9 1", 2)
		if len(c.Files) != 5 || c.Files[0] != "https://h/s0.toml" || c.Server {
			t.Errorf("confirmation %+v", c)
		}
		texts["s5.toml"] = "s5 2\n"
		s.give(texts)
		moment()
		list, err := keep.Histories(s.state, "https://h/s5.toml")
		check(t, err)
		r, err := s.src.Rollback(context.Background(), "https://h/s5.toml", list[len(list)-1].Number)
		check(t, err)
		s.use("rolled back", "s5 1, s6 1, s7 1, s8 1, s9 1", 2)
		if r.File != "https://h/s5.toml" || r.UID >= 0 {
			t.Errorf("rolled back to %+v", r)
		}
		s.give(texts)
		s.use("the same again", "s5 1, s6 1, s7 1, s8 1, s9 1", 0)
		s.stop()
		s.start()
		pass(time.Second)
		s.use("rolled back, and without the server", "s5 1, s6 1, s7 1, s8 1, s9 1", 1)
		s.give(texts)
		s.use("and with it", "s5 1, s6 1, s7 1, s8 1, s9 1", 0)

		_, err = s.src.Apply(context.Background(), time.Minute)
		check(t, err)
		texts["s9.toml"], texts["t.toml"] = "s9 3\n", "t 1\n"
		s.give(texts)
		s.use("on trial", "s5 1, s6 1, s7 1, s8 1, s9 3, t 1", 1)
		s.stop()
		pass(2 * time.Minute)
		s.start()
		s.give(texts)
		s.use("after the trial", "s5 1, s6 1, s7 1, s8 1, s9 1", 1)
		s.stop()
	})
}
