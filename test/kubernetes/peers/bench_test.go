//go:build netns

package peers

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/kubernetes/programs"
)

// programPaths are the programs that are measured.
var programPaths = map[string]string{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	dir, err := netnstest.TempDir()
	if err == nil {
		defer os.RemoveAll(dir)
		programPaths[ours], err = programs.Svcproxy("..", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// needKubeProxy finds or builds it.
func needKubeProxy(t *testing.T) {
	path, err := programs.Path("..", theirs)
	if err != nil {
		t.Fatal(err)
	}
	programPaths[theirs] = path
}

// TestBenchPeers measures what the plan says, as far as it is not there yet, and writes what is
// known then. It fails where something could not be measured, not where a target is missed.
func TestBenchPeers(t *testing.T) {
	p, err := fromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	needKubeProxy(t)
	b := newBench(t, p)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			for _, s := range p.sizes[mode] {
				t.Run(s.String(), func(t *testing.T) { b.size(t, mode, s) })
			}
		})
	}
	b.write(t)
}

// A bench is a run of a plan.
type bench struct {
	plan     *plan
	store    store
	subjects map[string]subject // by program
}

func newBench(t *testing.T, p *plan) *bench {
	b := &bench{p, store{p.dir}, map[string]subject{}}
	for name, path := range programPaths {
		s, err := subjectOf(name, path)
		if err != nil {
			t.Fatal(err)
		}
		b.subjects[name] = s
	}
	return b
}

// size measures all programs, round by round, so that what else the machine does meets all alike.
func (b *bench) size(t *testing.T, mode string, s size) {
	for i := range b.plan.roundsOf(s) {
		t.Run(fmt.Sprint("round-", i+1), func(t *testing.T) {
			for _, peer := range s.peers() {
				t.Run(peer, func(t *testing.T) { b.round(t, mode, s, peer, i) })
			}
		})
	}
}

// round measures one round of a program, unless that is there.
func (b *bench) round(t *testing.T, mode string, s size, peer string, i int) {
	c, err := b.store.load(mode, s, peer)
	if err != nil {
		t.Fatal(err)
	}
	if of := b.subjects[programOf(peer)]; c == nil || c.Subject.differs(of) {
		c = newCell(mode, s, peer, of)
	}
	if c.complete(i + 1) {
		t.Log("kept from an earlier run, or it took too long in an earlier round")
		return
	}
	r := round{Values: map[measure]float64{}, Over: map[measure]float64{}, Load: settleMachine(t, b.plan.calm)}
	n, err := newTurn(t, b.plan, mode, s, peer)
	if err != nil {
		t.Fatal(err)
	}
	n.rests = c.with(memoryRest) < b.plan.restedOf(s)
	n.restarts = !c.slow(restart)
	if err := n.measure(&r); err != nil {
		t.Fatal(err)
	}
	if len(n.server.refused) > 0 {
		t.Errorf("asked the server what it does not answer: %q", n.server.refused)
	}
	c.Rounds = append(c.Rounds, r)
	if err := b.store.save(c); err != nil {
		t.Fatal(err)
	}
}

// write writes the results, into the pages of docs if they are of the whole plan.
func (b *bench) write(t *testing.T) {
	r, err := b.store.report(b.plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		got, what := r.judge(target)
		t.Logf("TARGET %s %s: %s: %s times better, promised at least %g: %s", target.mode, target.size, target.measure, got, target.times, what)
	}
	docs := b.plan.dir
	if b.plan.whole {
		docs = "../../../docs"
	}
	if err := r.writeTo(docs, b.plan.whole); err != nil {
		t.Fatal(err)
	}
	t.Logf("results are in %s", docs)
}

func subjectOf(name, path string) (subject, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return subject{}, err
	}
	version, err := versionOf(name)
	if err != nil {
		return subject{}, err
	}
	machine, err := machineName()
	return subject{version, fmt.Sprintf("%.12x", sha256.Sum256(text)), machine, methodVersion}, err
}

var kubernetesVersion = regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`)

// versionOf names a version for readers.
func versionOf(name string) (string, error) {
	if name == ours {
		return commit(), nil
	}
	text, err := os.ReadFile("../binaries/go.mod")
	if err != nil {
		return "", err
	}
	found := kubernetesVersion.FindSubmatch(text)
	if found == nil {
		return "", errors.New("binaries/go.mod has no version of kube-proxy")
	}
	return string(found[1]), nil
}

// commit names the one that svcproxy was built from. What the tests write into docs makes it no other.
func commit() string {
	name, err := exec.Command("git", "describe", "--tags", "--always").Output()
	if err != nil {
		return "of an unknown commit" // an archive of the tree has none
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/", ":(top,exclude)docs", ":(top,exclude)test").Output()
	if err != nil || len(changed) > 0 {
		return strings.TrimSpace(string(name)) + "-dirty"
	}
	return strings.TrimSpace(string(name))
}

var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func machineName() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	model := "unknown processors"
	if found := modelName.FindSubmatch(info); found != nil {
		model = string(found[1])
	}
	return fmt.Sprintf("Linux %s, %d × %s", unix.ByteSliceToString(name.Release[:]), runtime.NumCPU(), model), nil
}

// settleMachine waits until the machine is idle for a second, within patience: the kernel is
// long busy with the removal of a network. It returns the load average.
func settleMachine(t *testing.T, patience time.Duration) float64 {
	t.Helper()
	idle := 0.0
	for end := time.Now().Add(patience); idle < 0.8 && time.Now().Before(end); {
		before, all := idleTime(t)
		time.Sleep(time.Second)
		after, allAfter := idleTime(t)
		idle = (after - before) / (allAfter - all)
	}
	if idle < 0.8 && patience > 0 {
		t.Logf("the machine is busy with other things: %.0f %% idle", 100*idle)
	}
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	load, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return load
}

// idleTime returns how long processors were idle, and all of their time.
func idleTime(t *testing.T) (idle, all float64) {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		n, _ := strconv.ParseFloat(field, 64) // the first field is a name
		all += n
		if i == 4 || i == 5 { // idle, iowait
			idle += n
		}
	}
	return idle, all
}

// A small run of everything: few services, one round of each program.
func TestKubernetesPeers(t *testing.T) {
	needKubeProxy(t)
	p := wholePlan()
	p.sizes = map[string][]size{nftables: {{20, 3}}}
	p.rounds, p.changes, p.rest, p.calm, p.bound, p.whole, p.dir = 1, 1, time.Second, 0, time.Minute, false, t.TempDir()
	latencyRounds, rateTime = 1, 100*time.Millisecond
	b := newBench(t, p)
	b.size(t, nftables, p.sizes[nftables][0])
	if t.Failed() {
		return
	}
	b.write(t)
	page, err := os.ReadFile(filepath.Join(p.dir, page))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(page), " 0 MiB") {
		t.Errorf("some memory is not measured:\n%s", page)
	}
	for _, m := range measures {
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(string(m)) + ` \|( over)?( [0-9.,]+ \S+ \| ?| [0-9,]+ \|){3}.* \|$`).Match(page) {
			t.Errorf("%s is not measured of all:\n%s", m, page)
		}
	}
}
