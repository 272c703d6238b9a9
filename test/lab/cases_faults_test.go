//go:build netns

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var faultGroups = []group{
	{
		name:     "faults",
		settings: "zone = \"here\"\n",
		cases:    []testCase{{name: "among random changes", run: testFaults}},
		except:   []string{"iptables", "ipvs"}, // without events they repair later
	},
	{
		name:     "monitor",
		cases:    []testCase{{name: "ruleset flushed", run: testMonitor}, {name: "again and again", run: testContention}},
		except:   []string{"iptables", "ipvs"},
		damaging: true,
	},
	{
		name:     "canary",
		cases:    []testCase{{name: "nat flushed", run: testCanary}, {name: "nat flushed while events are lost", run: testLostFlush}},
		except:   []string{"nftables", "ipvs"},
		damaging: true,
	},
}

// canaryPatience is how long nobody may notice a flush: nf_tables tells at once,
// the legacy variant is asked every 5 s; the next resync is 30 s away.
var canaryPatience = slow(12 * time.Second)

// testCanary: a flush of the rules of iptables mode is noticed long before the next resync.
func testCanary(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	checks := e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]).masked())
	e.expect(t, checks...)
	flushed := time.Now()
	if err := restore(e.Node, e.mode.variant, "*nat -F"); err != nil {
		t.Fatal(err)
	}
	if err := Poll(canaryPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Errorf("%v after a flush: %v", canaryPatience, err)
	}
	t.Logf("answers %v after the flush", time.Since(flushed))
	e.expect(t, checks...)
	if e.mode.variant == "legacy" { // the repair may come before the other family is asked
		e.expectLog(t, "rules were changed by another program: repairing them")
		return
	}
	e.expectLog(t, "somebody else changed our table: mending it\" family=ipv4 process=iptables")
	e.expectLog(t, "somebody else changed our table: mending it\" family=ipv6 process=ip6tables")
}

// testLostFlush: a flush is repaired also where its events are lost among those of others.
func testLostFlush(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.loseEvents(func() error { return restore(e.Node, e.mode.variant, "*nat -F") }); err != nil {
		t.Fatal(err)
	}
	if err := Poll(canaryPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Errorf("%v after a flush: %v", canaryPatience, err)
	}
}

// faultTime is how long there are changes and faults.
var faultTime = soak(30*time.Second, 10*time.Minute)

// repairPatience is how long a table may be gone. It takes some 5 ms, but longer
// where the kernel is busy with what others have removed; the next resync is 30 s away.
var repairPatience = slow(5 * time.Second)

// answers reports whether an endpoint answers on both addresses.
func (e *env) answers(to Dual) error {
	for _, q := range (check{from: e.Client, to: to}).questions() {
		q.Patience = 100 * time.Millisecond
		if got := Ask(q); got.Outcome != Answered {
			return fmt.Errorf("%s: %s", q, got)
		}
	}
	return nil
}

// A rampage changes services and damages the kernel's objects at random, while
// connections are made to a service that does not change.
type rampage struct {
	*env
	random *rand.Rand
	fresh  *Daemon // in another lab: what it makes of the same files is right

	deck    []fault // to be caused next
	deleted int     // elements, by hand

	mu     sync.Mutex
	gaps   []span // in which the steady service was damaged, until packets met it again
	failed []failure
}

type span struct{ start, end time.Time }

func (s span) overlaps(o span) bool { return s.start.Before(o.end) && o.start.Before(s.end) }

// A failure is a connection that was not made.
type failure struct {
	span
	what string
}

// A fault is something to be survived.
type fault struct {
	name string
	do   func(*rampage) error
	gap  bool // the steady service is damaged too, so new connections fail for a moment
}

var faults = []fault{
	{name: "edit", do: (*rampage).edit},
	{name: "edits", do: func(r *rampage) error { return errors.Join(r.edit(), r.edit(), r.edit()) }},
	{name: "elements deleted", do: (*rampage).deleteElements},
	{name: "killed", do: func(r *rampage) error { return errors.Join(r.daemon.Kill(), r.edit(), r.daemon.Start()) }},
	{name: "killed while editing", do: func(r *rampage) error { return errors.Join(r.edit(), r.daemon.Kill(), r.daemon.Start()) }},
	{name: "strays added", do: func(r *rampage) error {
		return nft(r.Node, "add set ip svcproxy stray { type ipv4_addr; }\nadd chain ip6 svcproxy stray")
	}},
	{name: "table deleted", gap: true, do: func(r *rampage) error {
		both := []string{"delete table ip svcproxy", "delete table ip6 svcproxy"}
		return nft(r.Node, strings.Join(pick(r.random, both[:1], both[1:], both), "\n"))
	}},
	{name: "events lost", gap: true, do: (*rampage).loseTable},
	{name: "rules deleted", gap: true, do: func(r *rampage) error {
		return nft(r.Node, "flush chain ip svcproxy prerouting\nflush chain ip6 svcproxy prerouting")
	}},
	{name: "sets flushed", gap: true, do: func(r *rampage) error { return flushNFTSets(r.Node) }},
	{name: "killed and table deleted", gap: true, do: func(r *rampage) error {
		return errors.Join(r.daemon.Kill(), nft(r.Node, "delete table ip svcproxy"), r.daemon.Start())
	}},
}

// testFaults: after each few changes and faults the kernel holds what a fresh
// daemon makes of the same files. Connections to a service that nobody touched
// never fail, except for those made between a damage of its own rules or elements
// and their repair: no table, no service. Established ones never do.
func testFaults(t *testing.T, e *env) {
	r := &rampage{env: e, random: newRandom(t), fresh: freshDaemon(t, e)}
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	conns := e.connections(t, e.Client, e.vip(1), 80)
	stop := r.connect(check{from: e.Client, to: e.vip(1)}, check{from: e.Node, to: e.vip(1)}, check{from: e.Client, to: e.external(1)})
	counts := make(map[string]int)
	for end := time.Now().Add(faultTime); (time.Now().Before(end) || len(counts) < len(faults)) && !t.Failed(); {
		var names []string
		for range 1 + r.random.IntN(4) {
			f := r.next()
			names = append(names, f.name)
			counts[f.name]++
			if err := r.cause(f); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		}
		if err := errors.Join(echo(conns), r.settle()); err != nil {
			t.Errorf("after %q: %v", names, err)
		}
	}
	made := stop()
	t.Logf("%d connections; %v, %d elements in all; steady service away for %v at most", made, counts, r.deleted, r.longestGap())
	if failed := r.unexcused(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %s", len(failed), failed[0].what)
	}
	r.removeFiles(t)
}

// freshDaemon returns a daemon in another lab.
func freshDaemon(t *testing.T, e *env) *Daemon {
	t.Helper()
	l := newLab(t)
	if err := e.mode.prepare(l.Node); err != nil {
		t.Fatal(err)
	}
	return newDaemon(t, l, e.mode)
}

// next returns faults at random, each once before any comes again.
func (r *rampage) next() fault {
	if len(r.deck) == 0 {
		r.deck = slices.Clone(faults)
		r.random.Shuffle(len(r.deck), func(i, j int) { r.deck[i], r.deck[j] = r.deck[j], r.deck[i] })
	}
	f := r.deck[0]
	r.deck = r.deck[1:]
	return f
}

// cause causes a fault and, where the steady service has one too, waits until packets meet it again.
func (r *rampage) cause(f fault) error {
	start := time.Now()
	err := f.do(r)
	if err != nil || !f.gap {
		return err
	}
	err = Poll(repairPatience, func() error { return r.answers(r.vip(1)) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, span{start, time.Now()})
	return err
}

// numbers of random services, as those of their addresses.
const (
	firstRandom = 20
	lastRandom  = 25
)

// edit changes, breaks off or removes a random service. It does not wait.
func (r *rampage) edit() error {
	i := byte(firstRandom + r.random.IntN(lastRandom-firstRandom+1))
	path := r.daemon.path(fmt.Sprintf("random-%d.json", i))
	if oneIn(r.random, 4) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := File(r.env.random(r.random, i))
	if err != nil {
		return err
	}
	return pick(r.random, renameOver, write)(path, text)
}

var (
	nftElement = regexp.MustCompile(`\ttable (ip6?) svcproxy: (set|map) (\S+): (\S.* \. .*)$`)
	nftComment = regexp.MustCompile(` comment "[^"]*"`)
)

// deleteElements deletes some elements that are not of the steady service. Others
// may be gone before: the daemon works meanwhile.
func (r *rampage) deleteElements() error {
	_, own, err := Snapshot(r.Node)
	if err != nil {
		return err
	}
	own = slices.DeleteFunc(own, func(line string) bool {
		return r.isSteady(line) || strings.Contains(line, "type ") || !nftElement.MatchString(line)
	})
	for range min(len(own), 1+r.random.IntN(5)) {
		found := nftElement.FindStringSubmatch(pick(r.random, own...))
		command := fmt.Sprintf("delete element %s svcproxy %s { %s }", found[1], found[3], nftComment.ReplaceAllString(found[4], ""))
		switch err := nft(r.Node, command); {
		case err == nil:
			r.deleted++
		case !strings.Contains(err.Error(), "No such file"):
			return err
		}
	}
	return nil
}

// manyEvents is how many elements make more events than may wait for a monitor.
const manyEvents = 150_000

// loseEvents stops the daemon, makes more events than the kernel queues (ENOBUFS),
// calls do, whose events are lost, and lets the daemon go on.
func (e *env) loseEvents(do func() error) error {
	var script strings.Builder
	script.WriteString("add table inet events\nadd set inet events many { type mark; }\nadd element inet events many { 0")
	for i := range manyEvents {
		fmt.Fprintf(&script, ", %d", i)
	}
	script.WriteString(" }")
	if err := e.daemon.Freeze(); err != nil {
		return err
	}
	return errors.Join(nftEach(e.Node, script.String(), "delete table inet events"), do(), e.daemon.Signal(unix.SIGCONT))
}

// loseTable deletes our table while events are lost.
func (r *rampage) loseTable() error {
	err := r.loseEvents(func() error { return nft(r.Node, "delete table ip svcproxy") })
	return errors.Join(err, r.logs("events of the kernel were lost: comparing everything"))
}

// isSteady reports whether a line of a listing is about an address of the steady service.
func (r *rampage) isSteady(line string) bool {
	return slices.ContainsFunc(slices.Concat(r.vip(1).Each(), r.external(1).Each()), func(a netip.Addr) bool {
		return strings.Contains(line, " "+a.String()+" ")
	})
}

// settle waits until the kernel holds what a fresh daemon makes of the same files.
func (r *rampage) settle() error {
	if err := r.daemon.Apply("settle"); err != nil {
		return err
	}
	want, err := r.model()
	if err != nil {
		return err
	}
	if err := Poll(expectPatience, func() error { return r.whole(want) }); err != nil {
		return fmt.Errorf("the kernel holds something else than a fresh start makes: %w", err)
	}
	return nil
}

// model returns the objects that a fresh daemon makes of the same files.
func (r *rampage) model() ([]string, error) {
	err := r.fresh.Kill()
	if _, failed := r.fresh.Command("cleanup"); failed != nil {
		return nil, errors.Join(err, failed)
	}
	for _, dir := range []string{r.fresh.ConfigDir(), r.fresh.StateDir()} {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	err = errors.Join(err, os.Mkdir(r.fresh.StateDir(), 0o755), os.CopyFS(r.fresh.ConfigDir(), os.DirFS(r.daemon.ConfigDir())))
	if err := errors.Join(err, r.fresh.Start()); err != nil {
		return nil, fmt.Errorf("starting another daemon on the same files: %w", err)
	}
	_, own, err := Snapshot(r.fresh.host)
	return own, err
}

// connect makes new connections all the time until stop, which tells how many.
func (r *rampage) connect(checks ...check) (stop func() int) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	made := make([]int, len(checks))
	for i, c := range checks {
		wg.Go(func() {
			for {
				for _, q := range c.questions() {
					r.try(q)
					made[i]++
				}
				select {
				case <-done:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
	return sync.OnceValue(func() (n int) {
		close(done)
		wg.Wait()
		for _, m := range made {
			n += m
		}
		return n
	})
}

// try makes one connection and notes when it fails.
func (r *rampage) try(q Question) {
	q.Patience = streamPatience
	start := time.Now()
	got := Ask(q)
	end := time.Now()
	if got.Outcome == Answered && !isLate(got, end.Sub(start)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, failure{span{start, end}, fmt.Sprintf("new connection %s: %s after %v", q, got, end.Sub(start))})
}

// unexcused returns the failures of connections that did not meet a damage.
func (r *rampage) unexcused() []failure {
	return slices.DeleteFunc(r.failed, func(f failure) bool { return slices.ContainsFunc(r.gaps, f.overlaps) })
}

func (r *rampage) longestGap() time.Duration {
	var longest time.Duration
	for _, g := range r.gaps {
		longest = max(longest, g.end.Sub(g.start))
	}
	return longest
}

func (r *rampage) removeFiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(r.daemon.ConfigDir(), "random-*.json"))
	for _, path := range append(files, r.daemon.path("settle.json")) {
		err = cmp.Or(err, os.Remove(path))
	}
	if err != nil {
		t.Error(err)
	}
}
