package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// bubble runs a host in one.
func bubble(t *testing.T, test func(h *host)) { guarded(t, Guard{}, test) }

func (h *host) uses(when, want string) {
	h.Helper()
	if now, _ := h.sink.look(); now != want {
		h.Errorf("%s: %q is in use, want %q", when, now, want)
	}
}

// again restarts the host's Source.
func (h *host) restart() {
	h.stop()
	h.checkStore()
	h.start()
	moment()
}

// versions returns numbers and changes of a file's history, the oldest first.
func (h *host) versions(name string) string {
	h.Helper()
	list, err := keep.Histories(h.state, name)
	check(h.T, err)
	var b []string
	for _, r := range list {
		text := fmt.Sprintf("%d %d %v", r.Number, r.Services, r.Names)
		if r.InUse {
			text += " in use"
		}
		b = append([]string{text}, b...)
	}
	return strings.Join(b, "; ")
}

// rollback goes back to the version of a file that is n before the newest.
func (h *host) rollback(name string, n int) {
	h.Helper()
	list, err := keep.Histories(h.state, name)
	check(h.T, err)
	_, err = h.src.Rollback(context.Background(), name, list[n].Number)
	check(h.T, err)
	moment()
}

func (h *host) apply(d time.Duration) Application {
	h.Helper()
	a, err := h.src.Apply(context.Background(), d)
	check(h.T, err)
	return a
}

func TestHistoryOfVersions(t *testing.T) {
	bubble(t, func(h *host) {
		h.keep = 3
		h.write("a.toml", "a 1\n")
		h.write("b.toml", "b 1\n")
		h.start()
		moment()
		for i := 2; i <= 5; i++ {
			h.change(func() { h.write("a.toml", fmt.Sprintf("a %d\nc%d 1\n", i, i)) })
		}
		h.change(func() { check(t, os.Remove(h.path("b.toml"))) })
		if got := h.versions("a.toml"); !strings.HasSuffix(got, "2 [~default/a -default/c4 +default/c5] in use") || strings.Count(got, ";") != 2 {
			t.Errorf("history of a.toml: %s", got)
		}
		if got := h.versions("b.toml"); !strings.Contains(got, "1 [+default/b];") || !strings.HasSuffix(got, "0 [-default/b]") {
			t.Errorf("history of b.toml: %s", got)
		}
		list, err := keep.Histories(h.state, "")
		check(t, err)
		if r := list[1]; r.File != "a.toml" || r.UID != os.Getuid() || r.At.IsZero() || r.Size != 9 {
			t.Errorf("revision %+v", r)
		}
		h.change(func() { check(t, os.Chmod(h.path("a.toml"), 0o666)); h.write("a.toml", "a 5\nc5 2\n") })
		list, err = keep.Histories(h.state, "a.toml")
		check(t, err)
		if r := list[0]; r.UID != os.Getuid() {
			t.Errorf("revision of a file that everybody may write: %+v", r)
		}
		entries, err := os.ReadDir(h.state + "/history")
		check(t, err)
		if len(entries) != 5 { // the index, 3 of a.toml, 1 of b.toml
			t.Errorf("kept: %v", entries)
		}
		h.restart()
		if got := h.versions(""); strings.Count(got, ";") != 4 {
			t.Errorf("history after a restart: %s", got)
		}
		h.change(func() { h.write("a.toml", "a 6\n") })
		if got := h.versions("a.toml"); !strings.HasSuffix(got, "1 [~default/a -default/c5] in use") {
			t.Errorf("history of a.toml after a restart: %s", got)
		}
	})
}

// A state directory of before has a last good version, and no history of it.
func TestHistoryBeginsWithTheLastGoodVersion(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.stop()
		check(t, os.RemoveAll(h.state+"/history"))
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 2\n") })
		h.rollback("a.toml", 1)
		h.uses("rolled back", "a 1")
	})
}

// What cannot be written to the history hinders nothing, and what was written half is passed over.
func TestUnwritableHistoryHindersNothing(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		index := h.state + "/history/index"
		check(t, os.Rename(index, index+".away"))
		check(t, os.Symlink("/dev/full", index))
		for i := 2; i < 5; i++ {
			h.change(func() { h.write("a.toml", fmt.Sprintf("a %d\n", i)) })
		}
		h.uses("with a full disk", "a 4")
		if n := count(&h.log, "cannot save the history of service files"); n != 1 || len(h.warnings()) > 0 {
			t.Errorf("told %d times; warnings %q", n, h.warnings())
		}
		h.stop()
		h.checkStore()
		check(t, os.Remove(index))
		data, err := os.ReadFile(index + ".away")
		check(t, err)
		write(t, index, string(data)+"12345678 {\"n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 5\n") })
		h.rollback("a.toml", 1)
		h.uses("rolled back", "a 4")
		data, err = os.ReadFile(index)
		check(t, err)
		if bytes.Contains(data, []byte("12345678")) {
			t.Errorf("the index has damaged lines:\n%s", data)
		}
	})
}

func TestRollbackToAnyVersion(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.write("b.toml", "b 1\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 2\nx 2\n") })
		h.change(func() { h.write("a.toml", "a 3\n") })
		h.rollback("a.toml", 1)
		h.uses("rolled back", "a 2, b 1, x 2")
		if st := h.src.Status().Files[0]; st.State != "rolled back" || st.Services != 2 || !strings.Contains(h.faults(), "is used in place of the present file; it is used until the file changes") {
			t.Errorf("status %+v", st)
		}
		h.change(func() { h.write("a.toml", "a 3\n") }) // as it was
		h.uses("written again", "a 2, b 1, x 2")
		h.restart()
		h.uses("after a restart", "a 2, b 1, x 2")
		h.never(2)
		h.change(func() { h.write("a.toml", "bad\n") })
		h.uses("broken", "a 2, b 1, x 2")
		h.restart()
		h.uses("broken, after a restart", "a 2, b 1, x 2")
		h.change(func() { h.write("a.toml", "a 3\n") })
		h.uses("no more broken", "a 2, b 1, x 2")
		h.change(func() { h.write("a.toml", "a 4\n") })
		h.uses("changed", "a 4, b 1")
		if h.faults() != "" {
			t.Errorf("faults: %s", h.faults())
		}
		h.restart()
		h.uses("changed, after a restart", "a 4, b 1")
		if got, _ := os.ReadFile(h.state + "/lastgood/decisions"); bytes.Contains(got, []byte("a.toml")) {
			t.Errorf("decided: %s", got)
		}
	})
}

// A file that was removed has its services until it is there again.
func TestRollbackRestoresARemovedFile(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.change(func() { check(t, os.Remove(h.path("a.toml"))) })
		h.uses("removed", "")
		h.rollback("a.toml", 1)
		h.uses("rolled back", "a 1")
		h.restart()
		h.uses("after a restart", "a 1")
		h.change(func() { h.write("a.toml", "a 2\n") })
		h.uses("there again", "a 2")
		h.change(func() { check(t, os.Remove(h.path("a.toml"))) })
		h.uses("removed again", "")
	})
}

// Back and forth: to the version that the file has, and while a change is held.
func TestRollbackBackAndForth(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", services(12, 1))
		h.start()
		moment()
		h.change(func() { h.write("a.toml", services(12, 2)) })
		h.rollback("a.toml", 1)
		if st := h.src.Status().Files[0]; st.State != "rolled back" {
			t.Errorf("status %+v", st)
		}
		h.rollback("a.toml", 1) // the file's own, before the one just taken up
		if st := h.src.Status().Files[0]; st.State != "accepted" || h.sink.inUse()[:6] != "s000 2" {
			t.Errorf("status %+v, %s", st, h.sink.inUse())
		}
		h.src.SetGuard(Guard{Removals: 30})
		h.change(func() { h.write("a.toml", services(2, 1)) })
		h.has("held", 12, 1)
		h.rollback("a.toml", 1)
		h.has("rolled back", 12, 0)
		h.restart()
		h.has("after a restart", 12, 0)
	})
}

func TestRollbackErrors(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.change(func() { check(t, os.Remove(h.path("a.toml"))) })
		for _, tt := range []struct {
			name   string
			number int
			want   string
		}{
			{"", 7, "there is no version 7; see svcproxy history"},
			{"b.toml", 1, "version 1 is one of a.toml, not of b.toml"},
			{"", 2, "version 2 is the removal of a.toml; name the version before it"},
		} {
			if _, err := h.src.Rollback(context.Background(), tt.name, tt.number); err == nil || err.Error() != tt.want {
				t.Errorf("rollback %q %d: %v\nwant: %s", tt.name, tt.number, err, tt.want)
			}
		}
		write(t, h.state+"/history/"+filepath.Base(h.copyOf("a.toml", "a 1\n")), "a 9\n")
		if _, err := h.src.Rollback(context.Background(), "a.toml", 1); err == nil || !strings.Contains(err.Error(), "its checksum is not the recorded one") {
			t.Errorf("rollback to a damaged copy: %v", err)
		}
		h.uses("after errors", "")
	})
}

// What is applied, and what is written until it is confirmed, goes back.
func TestUnconfirmedApplyGoesBack(t *testing.T) {
	const before, after = "a 1, b 1", "a 2, c 1"
	edit := func(h *host) {
		h.write("a.toml", "a 2\n")
		h.write("c.toml", "c 1\n")
		check(h.T, os.Remove(h.path("b.toml")))
	}
	begin := func(h *host, manual bool) {
		h.write("a.toml", "a 1\n")
		h.write("b.toml", "b 1\n")
		h.guard.Manual = manual
		h.start()
		moment()
		if manual {
			h.change(func() { edit(h) })
			h.uses("before apply", before)
			h.apply(time.Minute)
		} else {
			h.apply(time.Minute)
			h.change(func() { edit(h) })
		}
		synctest.Wait()
		h.uses("applied", after)
		if w := strings.Join(h.src.Status().Warnings, "; "); !strings.Contains(w, "goes back at") {
			h.Errorf("warnings: %s", w)
		}
	}
	wentBack := func(h *host) {
		h.Helper()
		h.uses("gone back", before)
		for _, f := range h.src.Status().Files {
			if f.State != "rolled back" {
				h.Errorf("status of %s: %s", f.Path, f.State)
			}
		}
		h.restart()
		if _, err := h.src.Confirm(context.Background()); err == nil || !strings.Contains(err.Error(), " went back at ") {
			h.Errorf("confirmed too late: %v", err)
		}
		h.restart()
		h.uses("gone back, after a restart", before)
		h.never(2)
		h.change(func() { h.write("a.toml", "a 5\n"); h.write("c.toml", "c 5\n") })
		if h.guard.Manual {
			h.confirm()
		}
		h.uses("changed", "a 5, b 1, c 5")
	}
	for _, manual := range []bool{true, false} {
		name := fmt.Sprintf("manual %v, ", manual)
		run := func(what string, test func(h *host)) {
			t.Run(name+what, func(t *testing.T) {
				bubble(t, func(h *host) { begin(h, manual); test(h) })
			})
		}
		run("confirmed", func(h *host) {
			h.confirm()
			pass(2 * time.Minute)
			h.uses("confirmed", after)
			h.restart()
			h.uses("after a restart", after)
		})
		run("not confirmed", func(h *host) {
			pass(50 * time.Second)
			h.uses("before its end", after)
			pass(10 * time.Second)
			wentBack(h)
		})
		run("restarted in time", func(h *host) {
			h.restart()
			h.uses("after a restart", after)
			pass(time.Minute)
			wentBack(h)
		})
		run("restarted in time, and confirmed", func(h *host) {
			h.restart()
			h.confirm()
			pass(time.Minute)
			h.uses("confirmed", after)
		})
		run("restarted too late", func(h *host) {
			h.stop()
			pass(time.Minute)
			h.start()
			moment()
			if _, steps := h.sink.look(); strings.Contains(strings.Join(steps, ";"), "a 2") {
				h.Errorf("what nobody had confirmed was used again: %q", steps)
			}
			wentBack(h)
		})
		run("the host started again", func(h *host) {
			h.stop()
			path := h.state + "/lastgood/decisions"
			data, err := os.ReadFile(path)
			check(h.T, err)
			d, err := parseDecisions(data)
			check(h.T, err)
			d.trial.Boot = "another"
			write(h.T, path, string(d.encode()))
			h.start()
			moment()
			wentBack(h)
		})
		run("applied again", func(h *host) {
			h.change(func() { h.write("a.toml", "a 3\n") })
			h.apply(time.Minute)
			moment()
			h.uses("applied again", "a 3, c 1")
			pass(57 * time.Second)
			h.uses("before its end", "a 3, c 1")
			pass(time.Second)
			wentBack(h)
		})
		run("rolled back meanwhile", func(h *host) {
			h.rollback("a.toml", 1)
			h.uses("rolled back", "a 1, c 1")
			h.change(func() { h.write("a.toml", "a 4\n") })
			if manual {
				h.uses("held", "a 1, c 1")
			}
			pass(time.Minute)
			h.uses("gone back", before)
		})
	}
}

// Without a place to keep what is to be undone nothing is applied.
func TestApplyNeedsADisk(t *testing.T) {
	bubble(t, func(h *host) {
		h.guard.Manual = true
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 2\n") })
		check(t, os.Remove(h.state+"/lastgood/decisions"))
		check(t, os.MkdirAll(h.state+"/lastgood/decisions/x", 0o700))
		if _, err := h.src.Apply(context.Background(), time.Minute); err == nil || !strings.Contains(err.Error(), "nothing was applied") {
			t.Errorf("apply: %v", err)
		}
		moment()
		h.uses("after that", "a 1")
		if len(h.warnings()) != 1 {
			t.Errorf("warnings: %q", h.warnings())
		}
		check(t, os.RemoveAll(h.state+"/lastgood/decisions"))
		pass(time.Hour)
		h.uses("an hour later", "a 1")
		if _, err := h.src.Apply(context.Background(), time.Millisecond); err == nil {
			t.Error("apply for a millisecond")
		}
	})
}

// Decisions that are damaged are none, and are told.
func TestDamagedDecisionsAreReported(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 2\n") })
		h.rollback("a.toml", 1)
		h.stop()
		write(t, h.state+"/lastgood/decisions", "svcproxy decisions 1 00000000\n{}\n")
		h.start()
		moment()
		h.uses("after a restart", "a 2")
		if !strings.Contains(h.log.String(), "lost the record of held") {
			t.Errorf("log:\n%s", h.log.String())
		}
	})
}

// A trial that names no versions goes back to nothing.
func TestDecisionsWithoutVersions(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		check(t, os.MkdirAll(h.state+"/lastgood", 0o700))
		d := decisions{trial: &trial{Began: time.Now(), Until: time.Now().Add(time.Minute), Boot: keep.Boot()}}
		write(t, h.state+"/lastgood/decisions", string(d.encode()))
		h.start()
		moment()
		pass(time.Minute)
		h.uses("gone back", "")
	})
}

func FuzzDecisions(f *testing.F) {
	now := time.Unix(1e9, 0).UTC()
	d := decisions{pins: map[string]*pin{"a.toml": {"a.toml", "held", [32]byte{1}, [32]byte{}, now, "why"}}, trial: &trial{Began: now, Until: now, Boot: "b", Before: map[string]*read.Version{"a.toml": {ID: [32]byte{2}}}}, overdue: &overdue{now, now}}
	f.Add(d.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parseDecisions(data)
		if err != nil {
			return
		}
		again, err := parseDecisions(d.encode())
		if err != nil || !bytes.Equal(again.encode(), d.encode()) {
			t.Errorf("%q is read as %q, %v", data, again.encode(), err)
		}
	})
}
