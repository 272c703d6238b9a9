//go:build netns

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// kills is how often the daemon is killed, and exactEvery after how many of these
// the kernel is compared with what a fresh start makes.
var (
	kills      = soak(max(5, Fewer(20)), 200)
	exactEvery = 5
)

// A victim is a file that changes while the daemon is killed again and again. Its
// versions have one service, whose endpoint tells the version.
type victim struct {
	name   string // of the file
	vip    Dual
	number int // of the version on disk; broken, absent

	// good are the versions that may be the last good one; absent: there may be
	// none. The daemon was not asked which of them it took before it was killed.
	good map[int]bool
}

// Numbers of what is no version.
const (
	broken = -1
	absent = -2
)

// testKills: killed at any moment, also of its start, while files change, the
// daemon holds after the next start what the files say, or what their last good
// versions did.
func testKills(t *testing.T, e *env) {
	var victims []*victim
	for i := range 6 {
		victims = append(victims, &victim{
			name: fmt.Sprintf("victim-%d.json", i), vip: e.vip(byte(10 + i)), number: absent, good: map[int]bool{absent: true},
		})
	}
	t.Cleanup(func() {
		for _, v := range victims {
			if err := e.daemon.RemoveFile(v.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	for n := range kills {
		e.changeAndKill(t, victims)
		if rand.IntN(4) == 0 { // before it is ready
			continue
		}
		if err := e.daemon.Await(); err != nil {
			t.Fatal(err)
		}
		for _, v := range victims {
			e.confirm(t, v)
		}
		if n%exactEvery == exactEvery-1 {
			e.exactly(t)
		}
		if t.Failed() {
			return
		}
	}
	if err := e.daemon.Await(); err != nil {
		t.Error(err)
	}
}

// changeAndKill changes files, kills the daemon meanwhile, and starts it without waiting until it is ready.
func (e *env) changeAndKill(t *testing.T, victims []*victim) {
	t.Helper()
	killed := make(chan error, 1)
	time.AfterFunc(rand.N(500*time.Millisecond), func() { killed <- e.daemon.Kill() })
	for dead := false; !dead; {
		v := victims[rand.IntN(len(victims))]
		if err := e.change(v); err != nil {
			t.Error(err)
		}
		select {
		case err := <-killed:
			if dead = true; err != nil {
				t.Fatal(err)
			}
		case <-time.After(rand.N(20 * time.Millisecond)):
		}
	}
	for _, v := range victims { // more depends on what was kept
		if v.number >= 0 && rand.IntN(3) == 0 {
			v.number = broken
			if err := write(e.daemon.path(v.name), ""); err != nil {
				t.Error(err)
			}
		}
	}
	if err := e.daemon.Launch(); err != nil {
		t.Fatal(err)
	}
}

// change makes another version of a file, breaks it, or removes it.
func (e *env) change(v *victim) error {
	path := e.daemon.path(v.name)
	switch n := rand.IntN(10); n {
	case 0:
		v.number, v.good[absent] = absent, true
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case 1, 2, 3:
		v.number = broken
		return spoil(path, n)
	}
	v.number = v.next()
	v.good[v.number] = true
	text, err := File(e.victimService(v))
	if err != nil {
		return err
	}
	if rand.IntN(2) == 0 {
		return renameOver(path, text)
	}
	return overwrite(path, text)
}

// overwrite writes a file in place, which must not be a link that leads nowhere.
func overwrite(path, text string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return renameOver(path, text)
	}
	return write(path, text)
}

func spoil(path string, how int) error {
	switch how {
	case 1:
		return renameOver(path, "")
	case 2:
		return renameOver(path, `{"services": [{"name": "spoilt"`)
	}
	return swapLink("nowhere", path)
}

// versions is how many versions of a victim can be told apart.
var versions = 2 * EndpointHosts * len(EndpointPorts)

// next returns a version that is not among those that may be in use, as long as there is one.
func (v *victim) next() int {
	n := rand.IntN(versions)
	for range versions {
		if !v.good[n] {
			break
		}
		n = (n + 1) % versions
	}
	return n
}

// victimService returns the service of the file's present version.
func (e *env) victimService(v *victim) Service {
	host, port := e.victimEndpoint(v.number)
	s := e.service(at(host)...)
	s.Name, s.VIPs = v.name[:len(v.name)-len(filepath.Ext(v.name))], v.vip.Each()
	for i := range s.Ports {
		s.Ports[i].TargetPort = port
	}
	return s
}

func (e *env) victimEndpoint(version int) (host *Host, port uint16) {
	hosts := slices.Concat(e.Local, e.Remote)
	return hosts[version%len(hosts)], EndpointPorts[version/len(hosts)]
}

// confirm checks what the kernel and the daemon say of a file after a start, and
// that is what its last good version is known to be from then on.
func (e *env) confirm(t *testing.T, v *victim) {
	t.Helper()
	used, err := e.used(v)
	if err != nil {
		t.Error(err)
		return
	}
	wanted := map[int]bool{v.number: true}
	if v.number == broken {
		wanted = v.good
	}
	if !wanted[used] {
		t.Errorf("%s, now version %d, is used in version %d, want one of %v", v.name, v.number, used, slices.Sorted(maps.Keys(wanted)))
	}
	if v.number == absent {
		v.good[absent] = true // what was kept may be dropped a moment later
	} else {
		v.good = map[int]bool{used: true}
	}
	e.confirmState(t, v, used)
}

// used returns which version of a file packets meet.
func (e *env) used(v *victim) (version int, err error) {
	var answers []Answer
	for _, q := range (check{from: e.Client, to: v.vip}).questions() {
		got := Ask(q)
		if got.Outcome == Dropped { // as by no version: a packet was lost, or a busy machine took longer
			q.Patience = streamPatience
			got = Ask(q)
		}
		answers = append(answers, got)
		same := got.Outcome == answers[0].Outcome && got.By == answers[0].By && got.Port == answers[0].Port
		if !(got.Outcome == Answered && same || e.isGivenUp(got) && e.isGivenUp(answers[0])) {
			return 0, fmt.Errorf("%s: %s: %v", v.name, q, answers)
		}
	}
	if e.isGivenUp(answers[0]) {
		return absent, nil
	}
	for n := range versions {
		if host, port := e.victimEndpoint(n); host.Role == answers[0].By && port == answers[0].Port {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: %s, which is not a version", v.name, answers[0])
}

// confirmState checks that the daemon says what it uses.
func (e *env) confirmState(t *testing.T, v *victim, used int) {
	t.Helper()
	want := source.Accepted
	switch {
	case v.number == absent:
		want = ""
	case v.number == broken && used == absent:
		want = source.Refused
	case v.number == broken:
		want = source.Stale
	}
	e.expectState(t, v.name, want, "")
}
