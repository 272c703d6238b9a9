package file

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	// killDir is set for the process that TestKilledProcessKeepsVersions kills: the directory to work in.
	killDir = "SVCPROXY_TEST_KILL_DIR"

	// killPower is set where the power fails, and not only the process is killed.
	killPower = "SVCPROXY_TEST_KILL_POWER"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killDir); dir != "" {
		victim(dir)
		return
	}
	if dir := os.Getenv(decideDir); dir != "" {
		decider(dir)
	}
	goleak.VerifyTestMain(m)
}

// victim runs a Source until it is killed, and writes down what happens: "begin
// FILE VERSION" before it is told what is accepted, "end ..." if that is kept,
// "uses SERVICES" after each change, "state SERVICES" when it is synced.
func victim(dir string) {
	src := New(Options{Dir: dir + "/etc", StateDir: dir + "/state"})
	src.parse, src.parseCopy = parseLines, parseLines
	l := &lagging{tracked: newTracked(src), accepted: make(chan []source.Unit, 1000)}
	go l.tellAll()
	_ = src.Run(context.Background(), l)
}

// A lagging sink tells what it accepted from another goroutine, as a Loop does.
type lagging struct {
	*tracked
	accepted chan []source.Unit
	numbers  sync.Map // see killed, by Unit.Version
}

func (l *lagging) number(u source.Unit) int {
	n, _ := l.numbers.Load(u.Version)
	return n.(int)
}

// Apply implements source.Sink.
func (l *lagging) Apply(ch source.Changes) {
	for _, u := range ch.Set {
		l.numbers.Store(u.Version, len(u.Services[0].Endpoints))
	}
	units := l.apply(ch)
	now, _ := l.look()
	fmt.Println("uses", now)
	l.accepted <- units
}

// Synced implements source.Sink.
func (l *lagging) Synced(string) {
	now, _ := l.look()
	fmt.Println("state", now)
}

func (l *lagging) tellAll() {
	for units := range l.accepted {
		for _, u := range units {
			fmt.Println("begin", filepath.Base(u.ID.Name), l.number(u))
		}
		l.src.Accepted(units)
		for _, u := range units {
			if l.kept(u) {
				fmt.Println("end", filepath.Base(u.ID.Name), l.number(u))
			}
		}
	}
}

// kept waits until what is accepted has been written, or where the power fails is on the disk, and reports whether a version
// is the last good one. It is not when its file broke, or went, before the Source
// was told: then the version before was handed on again.
func (l *lagging) kept(u source.Unit) bool {
	name, st := filepath.Base(u.ID.Name), l.src.store
	for st.Pending() || os.Getenv(killPower) != "" && !st.OnDisk() {
		time.Sleep(time.Millisecond)
	}
	r, known := st.Find(name)
	return known && read.IDText(r.Sum) == u.Version
}

// A killed file is one that changes while the process is killed again and again.
// Its versions are numbered, and each has one service with so many endpoints.
type killed struct {
	number  int          // of its present text; 0: broken, -1: it does not exist
	good    map[int]bool // versions that may be its last good; 0: none
	removed int          // the last number before it was removed; 0: it was not
}

// Killed at any moment, the next start finds what the files say, or their last
// good versions. SVCPROXY_KILLS says how often (20).
func TestKilledProcessKeepsVersions(t *testing.T) {
	kills := 20
	if n, err := strconv.Atoi(os.Getenv("SVCPROXY_KILLS")); err == nil {
		kills = n
	}
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/etc", 0o755))
	files := map[string]*killed{}
	for i := range 8 {
		files[fmt.Sprintf("f%d.toml", i)] = &killed{number: -1, good: map[int]bool{0: true}}
	}
	for n := range kills {
		life(t, dir, n*1000, files)
	}
}

// life is one run of the process.
func life(t *testing.T, dir string, n int, files map[string]*killed) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killDir+"="+dir)
	cmd.Stderr = os.Stderr // a panic
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("before it was synced: %v", err)
		}
		if state, ok := strings.CutPrefix(line, "state "); ok {
			compare(t, files, strings.TrimSpace(state))
			break
		}
		heed(files, line)
	}
	end := time.Now().Add(time.Duration(rand.IntN(400)) * time.Millisecond)
	for time.Now().Before(end) {
		n++
		name := slices.Sorted(maps.Keys(files))[rand.IntN(len(files))]
		files[name].change(t, filepath.Join(dir, "etc", name), n)
		time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond)
	}
	check(t, cmd.Process.Kill())
	rest, err := io.ReadAll(r)
	check(t, err)
	for line := range strings.Lines(string(rest)) {
		heed(files, line)
	}
	for name, k := range files { // so that more depends on what was kept
		if k.number > 0 && rand.IntN(2) == 0 {
			write(t, filepath.Join(dir, "etc", name), "bad\n")
			k.number = 0
		}
	}
}

// change makes another version of a file, or none.
func (k *killed) change(t *testing.T, path string, n int) {
	service := strings.TrimSuffix(filepath.Base(path), ".toml")
	text := fmt.Sprintf("%s %d\n", service, n)
	switch rand.IntN(8) {
	case 0:
		text, n = "bad\n", 0
	case 1:
		text, n = "", 0
	case 2:
		if k.number > 0 {
			k.removed = k.number
		}
		_ = os.Remove(path)
		k.number = -1
		return
	}
	write(t, path, text)
	k.number = n
}

// heed takes in a line of the process.
func heed(files map[string]*killed, line string) {
	var what, name string
	var n int
	if _, err := fmt.Sscanf(line, "%s %s %d\n", &what, &name, &n); err != nil || files[name] == nil {
		return // cut off by the kill
	}
	k := files[name]
	if what == "end" && n > k.removed {
		k.good, k.removed = map[int]bool{}, 0
	}
	k.good[n] = true
}

// compare reports whether the services in use are those that the files have.
func compare(t *testing.T, files map[string]*killed, state string) {
	t.Helper()
	uses := map[string]int{}
	for s := range strings.SplitSeq(state, ", ") {
		name, n, _ := strings.Cut(s, " ")
		uses[name+".toml"], _ = strconv.Atoi(n)
	}
	for name, k := range files {
		n := uses[name]
		if k.removed > 0 {
			k.good[0] = true
		}
		switch {
		case k.number > 0 && n != k.number, k.number < 0 && n != 0:
			t.Errorf("%s is used in version %d; want %d", name, n, k.number)
		case k.number == 0 && !k.good[n]:
			t.Errorf("%s is broken and used in version %d; want one of %v", name, n, slices.Sorted(maps.Keys(k.good)))
		case k.number == 0:
			k.good, k.removed = map[int]bool{n: true}, 0
		case k.number < 0:
			k.good[0] = true
		}
	}
}
