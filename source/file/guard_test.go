package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// guarded runs a host with a guard in a bubble.
func guarded(t *testing.T, g Guard, test func(h *host)) {
	inBubble(t, func(h *host) {
		h.guard = g
		test(h)
		h.stop()
		h.checkStore()
	})
}

// many writes n files of one service each.
func (h *host) many(n int) {
	for i := range n {
		h.write(fmt.Sprintf("f%03d.toml", i), fmt.Sprintf("s%03d 1\n", i))
	}
}

// change does something to the files, and lets it count.
func (h *host) change(do func()) {
	do()
	h.src.Reload()
	moment()
}

func (h *host) emptyDir() {
	paths, err := filepath.Glob(h.dir + "/*")
	check(h.T, err)
	for _, p := range paths {
		check(h.T, os.Remove(p))
	}
}

// has compares how many services are in use, and files held.
func (h *host) has(when string, services, held int) {
	h.Helper()
	h.sink.mu.Lock()
	n := len(h.sink.uses)
	h.sink.mu.Unlock()
	if got := h.src.Held(); n != services || got != held {
		h.Errorf("%s: %d services, %d files held; want %d and %d\n%s", when, n, got, services, held, h.faults())
	}
}

// never fails if there ever were fewer services than this.
func (h *host) never(fewer int) {
	h.Helper()
	_, steps := h.sink.look()
	synced := false
	for _, s := range steps {
		if synced = synced || s == "synced"; synced && s != "synced" && strings.Count(s, ",")+1 < fewer {
			h.Errorf("there were fewer than %d services: %s", fewer, s)
		}
	}
}

func (h *host) confirm() Confirmation {
	h.Helper()
	c, err := h.src.Confirm(context.Background())
	check(h.T, err)
	moment()
	return c
}

// services are n of them, with so many endpoints, named from some letter.
func services(n, endpoints int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "s%03d %d\n", i, endpoints)
	}
	return b.String()
}

// disabled are n services of one endpoint, of which the first are disabled.
func disabled(n, off int) string {
	lines := strings.SplitAfter(services(n, 1), "\n")
	for i := range off {
		lines[i] = strings.Replace(lines[i], " 1", " 1 off", 1)
	}
	return strings.Join(lines, "")
}

func TestGuardEmptiedDirectory(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(12)
		h.start()
		moment()
		h.change(h.emptyDir)
		h.has("emptied", 12, 12)
		if got := h.faults(); !strings.Contains(got, "DIR/f003.toml: this change is held: it would remove 1 service (default/s003); with all others 12 of 12 services, and 30 % may go; svcproxy confirm lets it through") {
			t.Errorf("faults: %s", got)
		}
		h.stop()
		h.start() // and is remembered
		moment()
		h.has("after a restart", 12, 12)
		h.never(12)
		h.change(func() { h.many(6) })
		h.has("half is back", 12, 6)
		if c := h.confirm(); len(c.Files) != 6 || c.Held != 0 || c.Applied {
			t.Errorf("confirmed: %+v", c)
		}
		h.has("confirmed", 6, 0)
		h.stop()
		h.start()
		moment()
		h.has("after another restart", 6, 0)
	})
}

func TestGuardWhileStopped(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(12)
		h.start()
		moment()
		h.stop()
		h.emptyDir()
		h.write("f000.toml", "s000 1\n")
		h.start()
		moment()
		h.has("emptied while stopped", 12, 11)
		h.never(12)
	})
}

// Files that vanish one by one are one removal: no more goes than may go, however long it takes.
func TestGuardAddsUpSingleRemovals(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		t.Run(step.String(), func(t *testing.T) {
			guarded(t, Guard{Removals: 30}, func(h *host) {
				const n = 100
				h.many(n)
				h.start()
				moment()
				for i := range n {
					check(t, os.Remove(h.path(fmt.Sprintf("f%03d.toml", i))))
					h.src.Reload()
					pass(step)
				}
				moment()
				h.never(n * 7 / 10)
				if h.src.Held() < n*7/10 {
					t.Errorf("%d files held", h.src.Held())
				}
				h.stop()
				h.start()
				moment()
				h.never(n * 7 / 10)
				h.has("after a restart", n-(n-h.src.Held()), h.src.Held())
			})
		})
	}
}

// What is held counts with what is removed later, when the rest is long ago.
func TestGuardSlowTrickle(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(20)
		h.start()
		moment()
		for i := range 20 {
			check(t, os.Remove(h.path(fmt.Sprintf("f%03d.toml", i))))
			h.src.Reload()
			pass(5 * time.Second)
		}
		h.has("one each 5 s", 14, 14)
	})
}

// What a held file would disable counts with what is removed later.
func TestGuardHeldDisables(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(9, 1))
		h.write("b.toml", "b 1\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", disabled(9, 4)) })
		h.has("disabled", 10, 1)
		h.change(func() { h.write("b.toml", "b 1 off\n") })
		h.has("and another", 10, 2)
	})
}

// A torn git checkout: all files vanish, and come back.
func TestGuardTornCheckout(t *testing.T) {
	for _, away := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
		guarded(t, Guard{Removals: 30}, func(h *host) {
			h.many(12)
			h.start()
			moment()
			h.emptyDir()
			h.src.Reload()
			pass(away)
			h.change(func() { h.many(12) })
			h.has("back", 12, 0)
			h.never(12)
			if got := h.faults(); got != "" {
				t.Errorf("faults: %s", got)
			}
		})
	}
}

func TestGuardLimitsShares(t *testing.T) {
	type edit struct {
		text string // of a.toml; empty: it is removed
		want string // what is in use: services, endpoints of the first, and whether it is held
	}
	tests := []struct {
		name     string
		removals int
		before   string
		edits    []edit
	}{
		{"off", 0, services(20, 1), []edit{{"none\n", "0 0 false"}}},
		{"all of nine", 30, services(9, 1), []edit{{"none\n", "0 0 false"}}},
		{"as many as may go", 30, services(10, 1), []edit{{services(7, 1), "7 1 false"}}},
		{"one more", 30, services(10, 1), []edit{{services(6, 1), "10 1 true"}}},
		{"in two steps", 30, services(10, 1), []edit{{services(8, 1), "8 1 false"}, {services(6, 1), "8 1 true"}}},
		{"and back", 30, services(10, 1), []edit{{services(6, 1), "10 1 true"}, {services(9, 1), "9 1 false"}}},
		{"held, then broken, then as it was", 30, services(10, 1), []edit{{services(6, 1), "10 1 true"}, {"bad\n", "10 1 false"}, {services(6, 1), "10 1 true"}}},
		{"the file goes", 30, services(10, 1), []edit{{"", "10 1 true"}, {services(10, 2), "10 2 false"}}},
		{"removed and back within the time", 30, services(10, 1), []edit{{services(8, 1), "8 1 false"}, {services(10, 1), "10 1 false"}, {services(8, 1), "8 1 false"}}},
		{"endpoints that may go", 30, "a 10\n", []edit{{"a 7\n", "1 7 false"}}},
		{"too many endpoints", 30, "a 10\n", []edit{{"a 6\n", "1 10 true"}}},
		{"endpoints in two steps", 30, "a 10\n", []edit{{"a 8\n", "1 8 false"}, {"a 6\n", "1 8 true"}}},
		{"endpoints that come back", 30, "a 10\n", []edit{{"a 8\n", "1 8 false"}, {"a 10\n", "1 10 false"}, {"a 7\n", "1 7 false"}}},
		{"endpoints of nine", 30, "a 9\n", []edit{{"a 0\n", "1 0 false"}}},
		{"a service with many endpoints goes", 30, services(10, 20), []edit{{services(9, 20), "9 20 false"}}},
		{"as many disabled as may go", 30, services(10, 1), []edit{{disabled(10, 3), "7 0 false"}}},
		{"one more disabled", 30, services(10, 1), []edit{{disabled(10, 4), "10 1 true"}}},
		{"disabled in two steps", 30, services(10, 1), []edit{{disabled(10, 3), "7 0 false"}, {disabled(10, 4), "7 0 true"}}},
		{"disabled and enabled again", 30, services(10, 1), []edit{{disabled(10, 3), "7 0 false"}, {services(10, 1), "10 1 false"}, {disabled(10, 3), "7 0 false"}}},
		{"deleted after it was disabled", 30, disabled(16, 6), []edit{{services(16, 1)[6*7:], "10 0 false"}}},
		{"one of ten that are enabled, beside others", 30, disabled(16, 6), []edit{{disabled(16, 10), "10 0 true"}}},
		{"nine that are enabled, beside others", 30, disabled(12, 3), []edit{{disabled(12, 12), "0 0 false"}}},
		{"as many endpoints disabled as may go", 30, "a 10\n", []edit{{"a 10 3\n", "1 7 false"}}},
		{"too many endpoints disabled", 30, "a 10\n", []edit{{"a 10 4\n", "1 10 true"}}},
		{"endpoints disabled and deleted", 30, "a 10\n", []edit{{"a 10 2\n", "1 8 false"}, {"a 8 2\n", "1 8 true"}}},
		{"endpoints enabled again", 30, "a 10\n", []edit{{"a 10 3\n", "1 7 false"}, {"a 10\n", "1 10 false"}, {"a 10 3\n", "1 7 false"}}},
		{"endpoints deleted after they were disabled", 30, "a 16 6\n", []edit{{"a 10\n", "1 10 false"}}},
		{"nine endpoints that are enabled, beside others", 30, "a 12 3\n", []edit{{"a 12 12\n", "1 0 false"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			guarded(t, Guard{Removals: tt.removals}, func(h *host) {
				h.write("a.toml", tt.before)
				h.start()
				moment()
				for _, e := range tt.edits {
					h.change(func() {
						if e.text == "" {
							check(t, os.Remove(h.path("a.toml")))
						} else {
							h.write("a.toml", e.text)
						}
					})
					h.sink.mu.Lock()
					first := h.sink.uses[source.Key{Namespace: "default", Name: strings.Fields(tt.before)[0]}]
					got := fmt.Sprintf("%d %d %v", len(h.sink.uses), first, h.src.Held() > 0)
					h.sink.mu.Unlock()
					if got != e.want {
						t.Errorf("after %q: %s, want %s; %s", e.text, got, e.want, h.faults())
					}
				}
			})
		})
	}
}

// After a minute what was removed does not count any more, unless it is held.
func TestGuardForgetsAfterItsWindow(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(20, 1))
		h.start()
		moment()
		h.change(func() { h.write("a.toml", services(15, 1)) })
		pass(guardWindow)
		h.change(func() { h.write("a.toml", services(11, 1)) })
		h.has("a minute later", 11, 0)
	})
}

// What moves to another file is not removed, whichever of the two is written first.
func TestGuardIgnoresMoves(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(12, 1))
		h.start()
		moment()
		h.change(func() { h.write("b.toml", services(12, 1)) }) // refused, until
		h.change(func() { h.write("a.toml", "none\n") })
		h.has("moved to b", 12, 0)
		h.change(func() {
			h.write("b.toml", "none\n")
			h.write("c.toml", services(12, 1))
		})
		h.has("moved to c", 12, 0)
		h.never(12)
	})
}

// A held file holds nothing else up.
func TestGuardOthersGoOn(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(12, 1))
		h.write("b.toml", "b 1\n")
		h.start()
		moment()
		h.change(func() {
			h.write("a.toml", services(2, 1))
			h.write("b.toml", "b 2\n")
			h.write("c.toml", "c 3\n")
		})
		h.has("held", 14, 1)
		if now, _ := h.sink.look(); !strings.HasPrefix(now, "b 2, c 3, s000 1") {
			t.Errorf("in use: %s", now)
		}
		h.src.SetGuard(Guard{})
		moment()
		h.has("without a guard", 4, 0)
	})
}

func TestManualGuardHoldsEverything(t *testing.T) {
	guarded(t, Guard{Manual: true}, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.has("at first", 1, 0)
		h.change(func() { h.write("a.toml", "a 2\n"); h.write("b.toml", "b 1\n") })
		uses := func(want string) {
			t.Helper()
			if now, _ := h.sink.look(); now != want {
				t.Errorf("in use: %q, want %q", now, want)
			}
		}
		uses("a 1")
		h.stop()
		h.write("c.toml", "c 1\n")
		h.start()
		moment()
		uses("a 1")
		if h.src.Held() != 3 {
			t.Errorf("%d files held", h.src.Held())
		}
		h.change(func() { check(t, os.Remove(h.path("c.toml"))) }) // which never was in use
		if h.src.Held() != 2 {
			t.Errorf("%d files held after one was removed", h.src.Held())
		}
		a, err := h.src.Apply(context.Background(), time.Minute)
		check(t, err)
		moment()
		uses("a 2, b 1")
		if !slices.Equal(a.Files, []string{"a.toml", "b.toml"}) {
			t.Errorf("applied: %+v", a)
		}
		h.change(func() { h.write("a.toml", "a 3\n") })
		if c := h.confirm(); !c.Applied || c.Held != 1 {
			t.Errorf("confirmed: %+v", c)
		}
		pass(2 * time.Minute)
		uses("a 2, b 1") // what was written later waits
		h.confirm()
		uses("a 3, b 1")
	})
}

// Where nothing was decided since, nothing is done to keep it.
func TestUnchangedDecisionsAreNotWritten(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(12)
		h.start()
		moment()
		h.change(h.emptyDir)
		h.has("emptied", 12, 12)
		n := testing.AllocsPerRun(10, func() {
			h.src.mu.Lock()
			defer h.src.mu.Unlock()
			h.src.keepDecisions(true)
		})
		if n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// What is confirmed does not count with what is removed later, nor what went before it.
func TestGuardConfirmedCountsNoMore(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(20, 1))
		h.start()
		moment()
		h.change(func() { h.write("a.toml", services(15, 1)) })
		h.change(func() { h.write("a.toml", services(12, 1)) })
		h.has("held", 15, 1)
		h.confirm()
		h.change(func() { h.write("a.toml", services(10, 1)) })
		h.has("confirmed, and two less", 10, 0)
	})
}
