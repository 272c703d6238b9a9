package file

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

func count(log *bytes.Buffer, msg string) int { return strings.Count(log.String(), msg) }

// While nothing can be kept, services go on as ever. It is told once, and tried again.
func TestStateDirUnusable(t *testing.T) {
	inBubble(t, func(h *host) {
		check(t, os.RemoveAll(h.state))
		write(t, h.state, "not a directory") // as root, permissions would not do
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.write("a.toml", "a 2\n")
		h.write("b.toml", "b 1\n")
		moment()
		if now, _ := h.sink.look(); now != "a 2, b 1" {
			t.Errorf("services in use: %q", now)
		}
		want := "last good versions of service files cannot be kept: mkdir " + h.state + ": not a directory"
		if got := h.warnings(); !slices.Equal(got, []string{want}) {
			t.Errorf("warnings\n got: %q\nwant: %q", got, want)
		}
		if n := count(&h.log, "cannot save last good versions"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, h.log.String())
		}

		check(t, os.Remove(h.state))
		pass(h.src.poll)
		if got := h.warnings(); len(got) > 0 {
			t.Errorf("warnings after it was repaired: %q", got)
		}
		h.stop()
		h.checkStore()
		if n := count(&h.log, "are saved again"); n != 1 {
			t.Errorf("its end logged %d times:\n%s", n, h.log.String())
		}
	})
}

// One copy that cannot be written does not hinder the others.
func TestOneCopyUnwritable(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.write("b.toml", "b 1\n")
		blocked := h.copyOf("a.toml", "a 1\n")
		check(t, os.MkdirAll(blocked+"/x", 0o700))
		h.start()
		moment()
		if _, ok := h.src.store.Find("b.toml"); !ok {
			t.Error("b.toml is not recorded")
		}
		if got := h.warnings(); len(got) != 1 || !strings.Contains(got[0], blocked) {
			t.Errorf("warnings: %q; want one about %s", got, blocked)
		}
		h.write("b.toml", "b 2\n")
		moment() // what else is written does not make it good
		if len(h.warnings()) != 1 {
			t.Error("no warning any more")
		}
		check(t, os.RemoveAll(blocked))
		pass(h.src.poll)
		h.stop()
		h.checkStore()
		if got := h.warnings(); len(got) > 0 {
			t.Errorf("warnings after it was repaired: %q", got)
		}
	})
}

// Many files at the first start are kept by and by, and at the next start each
// is read and parsed once, and no copy.
func TestManyFilesAreReadOnce(t *testing.T) {
	h := newHost(t)
	const n = 1000
	for i := range n {
		h.write(fmt.Sprintf("f%d.toml", i), fmt.Sprintf("s%d 1\n", i))
	}
	synctest.Test(t, func(t *testing.T) {
		h.T, h.fixture.T = t, t
		h.start()
		moment()
		h.stop()
		h.checkStore()
		if len(h.copies()) != n {
			t.Errorf("%d copies; want %d", len(h.copies()), n)
		}
		index, err := os.ReadFile(h.state + "/lastgood/index")
		check(t, err)
		for i := range n {
			h.damage(fmt.Sprintf("f%d.toml", i))
		}
		h.parsed.Store(0)
		h.start()
		moment()
		h.stop()
		if got := h.parsed.Load(); got != n || h.faults() != "" {
			t.Errorf("parsed %d files; want %d; faults %q", got, n, h.faults())
		}
		if after, err := os.ReadFile(h.state + "/lastgood/index"); err != nil || !bytes.Equal(index, after) {
			t.Error("the index was written though nothing changed")
		}
	})
}

// Since when a file is as it is, a restart does not change; when it broke is
// told by the time of its last change.
func TestSinceSurvivesARestart(t *testing.T) {
	h := newHost(t)
	h.write("a.toml", "a 1\n")
	h.write("b.toml", "b 1\n")
	h.start()
	h.awaitStates("a.toml accepted 1; b.toml accepted 1")
	accepted := h.src.Status().Files[1].Since
	time.Sleep(20 * time.Millisecond)
	breaking := time.Now()
	h.write("a.toml", "bad\n")
	broken := time.Now()
	time.Sleep(quietTime)
	h.stop()
	h.start()
	defer h.stop()
	h.awaitStates("a.toml stale 1; b.toml accepted 1")
	files := h.src.Status().Files
	const tick = 10 * time.Millisecond // the kernel's clock for files may go in such steps
	if got := files[0].Since; got.Before(breaking.Add(-tick)) || got.After(broken.Add(tick)) {
		t.Errorf("stale since %v, but it was broken between %v and %v", got, breaking, broken)
	}
	// The source says when it counted, the index when it was accepted.
	if got := files[1].Since.Sub(accepted); got < 0 || got > 5*time.Second || files[1].Since.After(broken) {
		t.Errorf("accepted since %v later than before the restart", got)
	}
}

// Two instances, on one directory or two, know nothing of each other.
func TestTwoInstancesAreIndependent(t *testing.T) {
	one, two := newHost(t), newHost(t)
	synctest.Test(t, func(t *testing.T) {
		for i, h := range []*host{one, two} {
			h.T, h.fixture.T = t, t
			h.write("a.toml", fmt.Sprintf("a %d\n", i+1))
			h.start()
		}
		moment()
		for i, h := range []*host{one, two} {
			h.stop()
			h.write("a.toml", "bad\n")
			h.start()
			moment()
			h.stop()
			if now, _ := h.sink.look(); now != fmt.Sprintf("a %d", i+1) {
				t.Errorf("instance %d uses %q", i+1, now)
			}
		}
	})
}

// A copy that was removed is written again while its file is at hand or, where that is broken, the history has its text.
func TestMissingCopyIsWrittenAgain(t *testing.T) {
	for name, again := range map[string]int{"with the history": 2, "without": 1} {
		t.Run(name, func(t *testing.T) {
			guarded(t, Guard{}, func(h *host) {
				h.write("a.toml", "a 1\n")
				h.write("b.toml", "b 1\n")
				h.start()
				moment()
				h.stop()
				want := h.copies()
				for _, name := range want {
					check(t, os.Remove(h.state+"/lastgood/"+name))
				}
				if again == 1 {
					check(t, os.RemoveAll(h.state+"/history"))
				}
				h.write("b.toml", "bad\n")
				h.start()
				moment()
				h.stop()
				if got := h.copies(); !slices.Equal(got, want[:again]) {
					t.Errorf("copies: %q; want %q", got, want[:again])
				}
			})
		})
	}
}

// A damaged copy is written again once its file is as it was then.
func TestDamagedCopyRepaired(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.stop()
		h.damage("a.toml")
		h.write("a.toml", "bad\n")
		h.start()
		moment()
		h.write("a.toml", "a 1\n")
		moment()
		h.stop()
		r, _ := h.src.store.Find("a.toml")
		if data, err := h.src.store.Read("a.toml", r); err != nil || string(data) != "a 1\n" {
			t.Errorf("the copy: %q, %v", data, err)
		}
		if h.faults() != "" {
			t.Errorf("faults: %s", h.faults())
		}
	})
}

// Without an index, or with one that is damaged, copies say what they are of,
// also when their names cannot hold that of their file. The newest whole one counts.
func TestCopiesNameThemselves(t *testing.T) {
	long := strings.Repeat("x", 240) + ".toml"
	for _, index := range []string{"remove", "", "svcproxy lastg", "\x00\x00\x00\x00"} {
		t.Run(index, func(t *testing.T) {
			inBubble(t, func(h *host) {
				h.write("a.toml", "a 1\n")
				h.write(long, "b 1\n")
				h.start()
				moment()
				h.stop()
				copies := h.copies()
				check(t, os.Remove(h.state+"/lastgood/index"))
				if index != "remove" {
					write(t, h.state+"/lastgood/index", index)
				}
				write(t, h.state+"/lastgood/a.0123456789ab.toml", "a 9\n") // cut off: another checksum
				older := h.copyOf("a.toml", "a 6\n")
				write(t, older, "a 6\n")
				check(t, os.Chtimes(older, time.Time{}, time.Unix(1, 0)))
				h.write("a.toml", "bad\n")
				h.write(long, "bad\n")
				for i := range 2 {
					h.start()
					moment()
					h.stop()
					if now, _ := h.sink.look(); now != "a 1, b 1" {
						t.Errorf("in use after start %d: %q", i, now)
					}
					if got := h.copies(); !slices.Equal(got, copies) {
						t.Errorf("copies after start %d: %q; want %q", i, got, copies)
					}
				}
				if n := count(&h.log, "is incomplete"); n != 1 {
					t.Errorf("logged %d times", n)
				}
			})
		})
	}
}

// A power failure may leave the index without the copy that it names. The one
// before is there still, for it is only removed once the new one is on the disk.
func TestPreviousCopyOutlivesAPowerFailure(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		before := h.copies()[0]
		h.write("a.toml", "a 2\n")
		moment()
		h.stop()
		check(t, os.Truncate(h.state+"/lastgood/"+h.copies()[0], 0))
		write(t, h.state+"/lastgood/"+before, "a 1\n")
		h.write("a.toml", "")
		h.start()
		moment()
		h.stop()
		if now, _ := h.sink.look(); now != "a 1" {
			t.Errorf("in use: %q; want a 1", now)
		}
		if count(&h.log, "the one before it is used") != 1 {
			t.Errorf("not logged:\n%s", h.log.String())
		}
		h.start()
		moment()
		h.stop()
		if now, _ := h.sink.look(); now != "a 1" {
			t.Errorf("in use after another start: %q; want a 1", now)
		}
	})
}

// A copy that a power failure has cut off is written again while its file is whole, also that of the history. Until
// the next start the copy before stays.
func TestCopyCutOff(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		before := h.copies()[0]
		h.write("a.toml", "a 2\n")
		moment()
		h.stop()
		last := h.copies()[0]
		check(t, os.Truncate(h.state+"/lastgood/"+last, 0)) // and so that of the history
		write(t, h.state+"/lastgood/"+before, "a 1\n")
		h.failPower()
		for _, want := range [][]string{{before, last}, {last}} {
			h.start()
			moment()
			h.stop()
			slices.Sort(want)
			if got := h.copies(); !slices.Equal(got, want) {
				t.Errorf("copies: %q; want %q", got, want)
			}
			for _, path := range []string{"/lastgood/", "/history/"} {
				if text, err := os.ReadFile(h.state + path + last); err != nil || string(text) != "a 2\n" {
					t.Errorf("%s has %q, %v", path, text, err)
				}
			}
		}
	})
}

// Where the copy before is used and is broken too, the fault names that one.
func TestCopyBeforeIsBroken(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 2\n")
		h.start()
		moment()
		h.stop()
		older := h.copyOf("a.toml", "bad\n")
		check(t, os.Truncate(h.state+"/lastgood/"+h.copies()[0], 0))
		write(t, older, "bad\n")
		h.write("a.toml", "")
		h.start()
		moment()
		h.stop()
		if !strings.Contains(h.log.String(), filepath.Base(older)) {
			t.Errorf("%s is not named:\n%s", older, h.log.String())
		}
	})
}

// What does not exist after a power failure may be what was about to be
// replaced. It is kept until it is back, or until a reload; a file that is removed
// before a start in the same boot, or after an orderly end, was removed.
func TestMissingAfterPowerFailure(t *testing.T) {
	tests := []struct {
		name   string
		down   func(h *host)
		uses   string
		states string
		then   func(h *host)
		end    string
	}{
		{"reload", func(h *host) { h.failPower() }, "a 1, b 1", "a.toml stale 1; b.toml accepted 1", func(h *host) { h.src.Reload() }, "b 1"},
		{"restart", func(h *host) { h.failPower() }, "a 1, b 1", "a.toml stale 1; b.toml accepted 1", func(h *host) { h.stop(); h.start() }, "a 1, b 1"},
		{"back", func(h *host) { h.failPower() }, "a 1, b 1", "a.toml stale 1; b.toml accepted 1", func(h *host) { h.write("a.toml", "a 2\n") }, "a 2, b 1"},
		{"index lost", func(h *host) { h.failPower(); check(h.T, os.Remove(h.state+"/lastgood/index")) }, "a 1, b 1", "a.toml stale 1; b.toml accepted 1", func(*host) {}, "a 1, b 1"},
		{"killed", func(h *host) { write(h.T, h.state+"/lastgood/running", keep.Boot()+"\n") }, "b 1", "b.toml accepted 1", func(*host) {}, "b 1"},
		{"orderly", func(*host) {}, "b 1", "b.toml accepted 1", func(*host) {}, "b 1"},
		{"orderly, and another boot", func(h *host) {
			if _, err := os.Stat(h.state + "/lastgood/running"); err == nil { // it says in which boot
				h.failPower()
			}
		}, "b 1", "b.toml accepted 1", func(*host) {}, "b 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(h *host) {
				h.write("a.toml", "a 1\n")
				h.write("b.toml", "b 1\n")
				h.start()
				moment()
				h.stop()
				check(t, os.Remove(h.path("a.toml")))
				tt.down(h)
				h.start()
				pass(3 * time.Minute) // polls too
				if now, _ := h.sink.look(); now != tt.uses || h.states() != tt.states {
					t.Errorf("in use %q, files %s; want %q, %s", now, h.states(), tt.uses, tt.states)
				}
				tt.then(h)
				pass(3 * time.Minute)
				h.stop()
				if now, _ := h.sink.look(); now != tt.end {
					t.Errorf("then in use %q; want %q", now, tt.end)
				}
			})
		})
	}
}

// failPower makes it look as if the host had stopped without shutting down.
func (h *host) failPower() { write(h.T, h.state+"/lastgood/running", "another boot\n") }

// A change does not wait for a disk that takes its time.
func TestChangeDoesNotWaitForASlowDisk(t *testing.T) {
	h := newHost(t)
	h.write("a.toml", "a 1\n")
	h.start()
	h.awaitStates("a.toml accepted 1")
	check(t, h.src.store.Flush(t.Context()))
	release := h.stall()
	h.write("a.toml", "a 2\n")
	h.src.Reload()
	if !pace.Within(10*time.Second, func() bool { now, _ := h.sink.look(); return now == "a 2" }) {
		t.Error("the change was not applied while the disk was busy")
	}
	release()
	want := keep.Record{Sum: read.IDOf([]byte("a 2\n"), nil)}
	pace.Within(30*time.Second, func() bool { r, _ := h.src.store.Find("a.toml"); return r.Sum == want.Sum })
	h.stop()
	if data, err := h.src.store.Read("a.toml", want); err != nil {
		t.Errorf("the copy: %q, %v", data, err)
	}
}

// Copies without a record go at the next start. Nothing else in the directory does.
func TestOrphanedCopiesAreRemoved(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.stop()
		want := h.copies()
		for _, name := range []string{"a.0123456789ab.toml", "a.json", "notes.txt"} {
			write(t, h.state+"/lastgood/"+name, "x")
		}
		h.start()
		moment()
		h.stop()
		want = append(want, "a.json", "notes.txt")
		slices.Sort(want)
		if got := h.copies(); !slices.Equal(got, want) {
			t.Errorf("in the directory: %q; want %q", got, want)
		}
	})
}
