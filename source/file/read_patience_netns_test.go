//go:build netns

package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// What is on a file system that does not answer holds up nothing else.
func TestDeadDiskHoldsUpNothing(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	for _, tt := range []struct {
		name string
		test func(d *deadDisk)
	}{
		{"the end of a link", (*deadDisk).linked},
		{"at the start", (*deadDisk).atStart},
		{"the directory", (*deadDisk).directory},
		{"disks beside the directory", (*deadDisk).beside},
		{"the directory at the start", (*deadDisk).directoryAtStart},
		{"opened", (*deadDisk).opened},
		{"large files opened", (*deadDisk).large},
		{"the disk of the state directory", (*deadDisk).state},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(newDeadDisk(t, t.TempDir()))
		})
	}
}

// A deadDisk is a directory of service files with a.toml, and x.toml that leads to another directory.
type deadDisk struct {
	*fixture
	far, stateDir string
}

func newDeadDisk(t *testing.T, root string) *deadDisk {
	d := &deadDisk{&fixture{T: t, dir: root + "/conf"}, root + "/far", root + "/state"}
	check(t, os.Mkdir(d.dir, 0o755))
	check(t, os.Mkdir(d.far, 0o755))
	d.write("a.toml", "a 1\n")
	write(t, d.far+"/x.toml", "x 1\n")
	d.link()
	d.start()
	d.sink.await("at first", "a.toml: a 1; x.toml: x 1")
	return d
}

func (d *deadDisk) link() { check(d.T, os.Symlink("../far/x.toml", d.path("x.toml"))) }

// start runs a Source that is told at once what is accepted.
func (d *deadDisk) start() {
	d.sink = newRecorder(d.T, d.dir)
	d.src = New(Options{Dir: d.dir, StateDir: d.stateDir, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(d.Output(), nil))})
	d.src.parse, d.src.parseCopy = parseLines, parseLines
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan error)
	go func() { done <- d.src.Run(ctx, accepter{d.sink, d.src}) }()
	d.stop = func() {
		cancel()
		check(d.T, <-done)
		d.stop = func() {}
	}
	d.Cleanup(func() { d.stop() })
}

// An accepter is a sink that accepts all.
type accepter struct {
	*recorder
	src *Source
}

func (a accepter) Apply(ch source.Changes) {
	a.src.Accepted(ch.Set)
	for i := range ch.Set {
		ch.Set[i].Since = 0 // which a recorder knows nothing of
	}
	a.recorder.Apply(ch)
}

// commands sees that what others ask of Run is done.
func (d *deadDisk) commands() {
	d.Helper()
	if err := d.src.inRun(d.Context(), func(source.Sink) error { return nil }); err != nil {
		d.Fatal(err)
	}
}

func (d *deadDisk) linked() {
	answer := disktest.Dead(d.T, d.far)
	d.write("a.toml", "a 2\n")
	d.sink.await("beside what does not answer", "a.toml: a 2; x.toml: x 1")
	d.awaitStates("a.toml accepted 1; x.toml stale 1")
	if fault := d.src.Known().Files[1].Faults[0].String(); !strings.HasSuffix(fault, "cannot be read: "+disk.ErrNoAnswer.Error()) {
		d.Errorf("fault %q", fault)
	}
	d.commands()
	check(d.T, os.Remove(d.path("x.toml")))
	d.sink.await("the link is removed", "a.toml: a 2")
	d.link()
	d.awaitStates("a.toml accepted 1; x.toml refused 0")
	answer()
	d.sink.await("it answers", "a.toml: a 2; x.toml: x 1")
}

func (d *deadDisk) atStart() {
	d.awaitStates("a.toml accepted 1; x.toml accepted 1")
	d.stop()
	write(d.T, d.far+"/x.toml", "x 2\n")
	answer := disktest.Dead(d.T, d.far)
	d.start()
	d.sink.await("what was last accepted", "a.toml: a 1; x.toml: x 1")
	answer()
	d.sink.await("it answers", "a.toml: a 1; x.toml: x 2")
}

func (d *deadDisk) directory() {
	answer := disktest.Dead(d.T, d.dir)
	pace.Until(d, "told of the directory", func() bool { return d.src.Problems()["directory"] == true })
	d.commands()
	answer()
	d.write("a.toml", "a 2\n")
	d.sink.await("it answers", "a.toml: a 2; x.toml: x 1")
}

// beside has more links to disks of their own than are waited for.
func (d *deadDisk) beside() {
	const disks = 300
	for i := range disks {
		far := fmt.Sprint(d.dir, i)
		check(d.T, os.Mkdir(far, 0o755))
		disktest.Dead(d.T, far)
		check(d.T, os.Symlink(far+"/x.toml", d.path(fmt.Sprintf("y%d.toml", i))))
	}
	for start := time.Now(); len(d.src.Known().Files) < 2+disks; time.Sleep(openPoll) {
		if time.Since(start) > time.Minute {
			d.Fatalf("files: %s", d.states())
		}
	}
	for _, text := range []string{"a 2", "a 3"} { // each is told by an event
		d.write("a.toml", text+"\n")
		d.sink.await("beside what does not answer", "a.toml: "+text+"; x.toml: x 1")
	}
}

func (d *deadDisk) directoryAtStart() {
	d.awaitStates("a.toml accepted 1; x.toml accepted 1")
	d.stop()
	d.write("a.toml", "a 2\n")
	answer := disktest.Dead(d.T, d.dir)
	d.start()
	d.sink.await("what was last accepted", "a.toml: a 1; x.toml: x 1")
	d.commands()
	answer()
	d.sink.await("it answers", "a.toml: a 2; x.toml: x 1")
}

func (d *deadDisk) opened() {
	d.write("b.toml", "b 1\n")
	d.sink.await("another", "a.toml: a 1; b.toml: b 1; x.toml: x 1")
	answer := disktest.Unopenable(d.T, d.path("b.toml"))
	check(d.T, os.Chmod(d.path("b.toml"), 0o600))
	d.write("a.toml", "a 2\n")
	d.sink.await("beside it", "a.toml: a 2; b.toml: b 1; x.toml: x 1")
	d.awaitStates("a.toml accepted 1; b.toml stale 1; x.toml accepted 1")
	answer()
	d.awaitStates("a.toml accepted 1; b.toml accepted 1; x.toml accepted 1")
}

// large has more large files that cannot be opened than are parsed at a time.
func (d *deadDisk) large() {
	var held []string
	for i := range cap(d.src.slots) + 1 {
		held = append(held, d.path(string(rune('k'+i))+".toml"))
		write(d.T, held[i], strings.Repeat("hm\n", largeSize))
	}
	d.write("z.toml", "z 1\n"+strings.Repeat("hm\n", largeSize))
	pace.UntilOr(d, func() bool { return len(d.src.Known().Files) >= len(held)+3 }, func() string {
		return "files: " + d.states()
	})
	answer := disktest.Unopenable(d.T, held...)
	for _, path := range held {
		check(d.T, os.Chmod(path, 0o600))
	}
	time.Sleep(quietTime) // they are all being read
	d.write("z.toml", "z 2\n"+strings.Repeat("hm\n", largeSize))
	want := "z.toml: z 2"
	pace.UntilOr(d, func() bool { return strings.Contains(d.sink.state(), want) }, func() string {
		return "holds " + d.sink.state() + "; want " + want
	})
	for _, state := range []string{" stale 0", " accepted 0"} {
		var all []string
		for _, path := range held {
			all = append(all, filepath.Base(path)+state)
		}
		d.awaitStates("a.toml accepted 1; " + strings.Join(all, "; ") + "; x.toml accepted 1; z.toml accepted 1")
		check(d.T, d.src.inRun(d.Context(), func(source.Sink) error { // what is being read delays removals
			looked, _ := d.src.lookAt(d.Context(), []string{filepath.Base(held[0])}, newWork())
			if len(looked) != 1 {
				d.Errorf("%s is read again", held[0])
			}
			return nil
		}))
		answer()
	}
}

// state has a disk that takes what is written and does not say that it is there, also of what an earlier run
// wrote: a process that is killed meanwhile loses nothing.
func (d *deadDisk) state() {
	d.awaitStates("a.toml accepted 1; x.toml accepted 1")
	check(d.T, d.src.store.Flush(d.Context()))
	answer := disktest.Unopenable(d.T, d.stateDir+"/lastgood")
	check(d.T, d.src.inRun(d.Context(), func(source.Sink) error { d.src.cleanStore(); return nil }))
	for _, text := range []string{"a 2", "a 3"} { // the second while the disk is waited for because of the first
		d.write("a.toml", text+"\n")
		d.sink.await("while the disk is waited for", "a.toml: "+text+"; x.toml: x 1")
		d.awaitWritten(text + "\n")
	}
	if d.src.store.OnDisk() {
		d.Error("it is taken for kept before the disk says so")
	}
	answer()
	check(d.T, d.src.store.Flush(d.Context()))
}

// awaitWritten waits until a start would find this of a.toml.
func (d *deadDisk) awaitWritten(want string) {
	d.Helper()
	var text []byte
	pace.UntilOr(d, func() bool {
		text, _ = os.ReadFile(d.src.store.CopyPath("a.toml", read.IDOf([]byte(want), nil)))
		return string(text) == want && !d.src.store.Pending()
	}, func() string { return fmt.Sprintf("a start would use %q, not %q", text, want) })
}
