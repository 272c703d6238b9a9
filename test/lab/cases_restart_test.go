//go:build netns

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var restartGroups = []group{
	{name: "restarts", exact: true, except: inSoakOnly, cases: []testCase{
		{name: "claims", run: testClaimsStay},
		{name: "claims that are given up", run: testClaimsPassOn},
		{name: "boot with a broken file", run: testBootBroken},
		{name: "boot with a damaged copy", run: testBootDamaged},
		{name: "order of events", run: testOrder},
	}},
	{name: "kills", exact: true, cases: []testCase{{name: "at any moment", run: testKills}}},
}

// testClaimsStay: who was accepted first keeps what it claims over a restart,
// whatever the names. Without a record the earlier name has it.
func testClaimsStay(t *testing.T, e *env) {
	e.file(t, "second-name", e.named("holder", 1, at(e.Local[0])...))
	if _, err := e.daemon.Write("first-name", e.named("clash", 1, at(e.Local[1])...), e.named("bystander", 2, at(e.Local[1])...)); err != nil {
		t.Fatal(err)
	}
	e.remove(t, "first-name.json", "second-name.json")
	held := []check{
		{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		{from: e.Client, to: e.vip(2), want: untouched},
	}
	for _, restart := range []func() error{
		func() error { return nil },
		func() error { return errors.Join(e.daemon.Stop(), e.daemon.Start()) },
		func() error { return errors.Join(e.daemon.Kill(), e.daemon.Start()) },
		func() error { return errors.Join(e.daemon.Signal(unix.SIGHUP), e.daemon.Apply(e.name())) },
	} {
		if err := restart(); err != nil {
			t.Fatal(err)
		}
		e.expectState(t, "first-name.json", source.Refused, e.takenBy("holder"))
		e.expect(t, held...)
	}
	if err := errors.Join(e.daemon.Stop(), e.daemon.Forget(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expectState(t, "second-name.json", source.Refused, e.takenBy("clash"))
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(2), want: by(e.Local[1])},
	)
}

// testClaimsPassOn: of two files that wait for a claim, the one accepted first
// gets it, whatever the names, also when that was before a restart.
func testClaimsPassOn(t *testing.T, e *env) {
	e.file(t, "z-first", e.named("first", 1, at(e.Local[0])...))
	e.file(t, "a-second", e.named("second", 2, at(e.Local[1])...))
	e.file(t, "holder", e.named("holder", 3, at(e.Local[2])...))
	e.remove(t, "z-first.json", "a-second.json", "holder.json")
	for name, s := range map[string]Service{
		"a-second": e.named("second", 3, at(e.Local[1])...),
		"z-first":  e.named("first", 3, at(e.Local[0])...),
	} {
		if _, err := e.daemon.Write(name, s); err != nil {
			t.Fatal(err)
		}
		e.expectState(t, name+".json", source.Stale, e.takenBy("holder"))
	}
	if err := errors.Join(e.daemon.Stop(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.file(t, "holder")
	e.expectState(t, "z-first.json", source.Accepted, "[]")
	e.expectState(t, "a-second.json", source.Stale, e.takenBy("first"))
	e.expect(t,
		check{from: e.Client, to: e.vip(3), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(2), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(1), want: e.givenUp()},
	)
}

// takenBy is what a fault says of a claim that a service of the case holds.
func (e *env) takenBy(suffix string) string {
	return fmt.Sprintf("is taken by %q", "default/"+e.named(suffix, 0).Name)
}

// expectState waits until a file is in a state, for a reason.
func (e *env) expectState(t *testing.T, name string, want source.FileState, fault string) {
	t.Helper()
	err := pace.Poll(expectPatience, func() error {
		files, err := e.daemon.Files()
		f := files[name]
		if text := fmt.Sprint(f.Faults); err == nil && (f.State != want || !strings.Contains(text, fault)) {
			err = fmt.Errorf("%s is %q with faults %s, want it %s with %q", name, f.State, text, want, fault)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testBootBroken: what a file has become while the daemon was away makes its last
// good services stay, as long as it says nothing else.
func testBootBroken(t *testing.T, e *env) {
	tests := []struct {
		name  string
		spoil func(path string) error
		fault string
	}{
		{"cut off", func(path string) error { return write(path, `{"services": [`) }, "the text ends within a value"},
		{"empty", func(path string) error { return write(path, "") }, "empty"},
		{"dangling symlink", func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("nowhere", path))
		}, "cannot be read: no such file or directory"},
		{"pipe", func(path string) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o644))
		}, "cannot be read: it is not a regular file"},
		{"directory", func(path string) error {
			return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o755))
		}, "cannot be read: it is a directory"},
		{"link to a directory", func(path string) error {
			return errors.Join(os.RemoveAll(path), os.Symlink("/", path))
		}, "cannot be read: it is a directory"},
	}
	e.file(t, "sound", e.named("sound", 2, at(e.Local[0])...))
	e.remove(t, "fragile.json", "sound.json")
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ep := e.Local[i%EndpointHosts]
			t.Cleanup(func() { _ = os.RemoveAll(e.daemon.path("fragile.json")) }) // nothing is renamed over a directory
			e.file(t, "fragile", e.named("fragile", 1, at(ep)...))
			e.lastGood(t, "fragile.json") // a stop does not wait for a slow disk
			err := errors.Join(e.daemon.Stop(), e.cleanKernel(), tt.spoil(e.daemon.path("fragile.json")), e.daemon.Start())
			if err != nil {
				t.Fatal(err)
			}
			e.expect(t,
				check{from: e.Client, to: e.vip(1), want: by(ep)},
				check{from: e.Client, to: e.vip(2), want: by(e.Local[0])},
			)
			e.expectState(t, "fragile.json", source.Stale, tt.fault)
		})
	}
	e.file(t, "fragile", e.named("fragile", 1, at(e.Remote[0])...))
	e.expectState(t, "fragile.json", source.Accepted, "[]")
}

// cleanKernel removes everything of svcproxy from the kernel.
func (e *env) cleanKernel() error {
	_, err := e.daemon.Command("cleanup")
	return err
}

// testBootDamaged: where a copy is not what was kept, the same text in the history is used. If that is gone too, the file
// has no services until it is corrected.
func testBootDamaged(t *testing.T, e *env) {
	e.remove(t, "fragile.json")
	const damage = "the copy of the last good version cannot be used: its checksum is not the recorded one; "
	for _, tt := range []struct {
		name  string
		lose  bool // the history too
		want  want
		state source.FileState
		fault string
		log   string
	}{
		{"history", false, by(e.Local[0]), source.Stale, "the text ends within a value", damage + "the same text in the history is used"},
		{"no history", true, e.givenUp(), source.Refused, damage, damage + "no older one is kept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e.file(t, "fragile", e.named("fragile", 1, at(e.Local[0])...))
			lastGood, text := e.lastGood(t, "fragile.json")
			damaged := strings.Replace(text, e.Local[0].Addr().V4.String(), e.Local[1].Addr().V4.String(), 1)
			// The history has it as a link, which stays.
			err := errors.Join(e.daemon.Stop(), os.Remove(lastGood), write(lastGood, damaged), write(e.daemon.path("fragile.json"), "{"))
			if tt.lose {
				err = errors.Join(err, os.RemoveAll(filepath.Join(e.daemon.StateDir(), "history")))
			}
			if err = errors.Join(err, e.daemon.Start()); err != nil {
				t.Fatal(err)
			}
			e.expect(t, check{from: e.Client, to: e.vip(1), want: tt.want})
			e.expectState(t, "fragile.json", tt.state, tt.fault)
			e.expectLog(t, tt.log)
			e.file(t, "fragile", e.named("fragile", 1, at(e.Local[2])...))
			e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[2])})
			e.expectState(t, "fragile.json", source.Accepted, "[]")
		})
	}
}

// lastGood waits until the one copy of a file says what the file does: it is
// written after the kernel has the change. It returns the path of the copy and the text.
func (e *env) lastGood(t *testing.T, name string) (path, text string) {
	t.Helper()
	pattern := strings.TrimSuffix(name, ".json") + ".*.json"
	err := pace.Poll(expectPatience, func() error {
		copies, err := filepath.Glob(filepath.Join(e.daemon.StateDir(), "lastgood", pattern))
		if err != nil || len(copies) != 1 {
			return fmt.Errorf("copies of the last good version: %v, error %v, want one", copies, err)
		}
		now, err := os.ReadFile(e.daemon.path(name))
		kept, err2 := os.ReadFile(copies[0])
		if string(now) != string(kept) {
			err2 = errors.Join(err2, fmt.Errorf("%s is not kept as it is now", name))
		}
		path, text = copies[0], string(kept)
		return errors.Join(err, err2)
	})
	if err != nil {
		t.Fatal(err)
	}
	return path, text
}

// letGo waits until what services have given up is gone, in ipvs mode too.
func (e *env) letGo() {
	if e.mode.name == "ipvs" {
		time.Sleep(Slow(givenUpAfter))
	}
}

// exactly checks that the kernel holds what a daemon makes of the same files and
// state that starts with nothing in the kernel.
func (e *env) exactly(t *testing.T) {
	t.Helper()
	e.letGo()
	_, now, err := Snapshot(e.Node)
	if err == nil {
		err = errors.Join(e.daemon.Kill(), e.cleanKernel(), e.daemon.Start())
	}
	if err != nil {
		t.Fatal(err)
	}
	_, fresh, err := Snapshot(e.Node)
	if err == nil {
		err = Difference(fresh, now)
	}
	if err != nil {
		t.Errorf("the kernel did not hold what a fresh start makes: %v", err)
	}
}
