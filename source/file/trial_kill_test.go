package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// decideDir is set for the process that TestKilledProcessKeepsDecisions kills: the directory to work in.
const decideDir = "SVCPROXY_TEST_DECIDE_DIR"

// decider runs a Source until it is killed, and writes down "is N" when version N is in use for
// certain, "try N" before it may become so, "trial N" before an apply may go back to it, and
// "confirmed N" when none does any more. A version has one service with so many endpoints.
func decider(dir string) {
	src := New(Options{Dir: dir + "/etc", StateDir: dir + "/state"})
	src.parse, src.parseCopy = parseLines, parseLines
	d := &deciding{tracked: newTracked(src), dir: dir, synced: make(chan bool)}
	go func() { _ = src.Run(context.Background(), d) }()
	<-d.synced
	d.keep()
	fmt.Println("is", d.version())
	for {
		d.decide()
	}
}

type deciding struct {
	*tracked
	dir      string
	synced   chan bool
	accepted atomic.Int64 // the version in use, once the Source knows that it is
}

// Apply implements source.Sink.
func (d *deciding) Apply(ch source.Changes) {
	d.tracked.Apply(ch)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepted.Store(int64(d.uses[source.Key{Namespace: "default", Name: "a"}]))
}

// Synced implements source.Sink.
func (d *deciding) Synced(string) { close(d.synced) }

func (d *deciding) version() int { return int(d.accepted.Load()) }

// keep waits until what is in use is recorded. Killed before, while the file is written again, the
// next process finds neither.
func (d *deciding) keep() { must(d.src.store.Flush(context.Background())) }

// edit has a new version of the file in use, and recorded.
func (d *deciding) edit() {
	n := 1 + rand.IntN(500)
	fmt.Println("try", n)
	must(os.WriteFile(d.dir+"/etc/a.toml", fmt.Appendf(nil, "a %d\n", n), 0o644))
	for d.version() != n {
		time.Sleep(time.Millisecond)
	}
	d.keep()
}

// decide does one thing after another that changes what is in use.
func (d *deciding) decide() {
	ctx := context.Background()
	d.edit()
	fmt.Println("is", d.version())
	fmt.Println("trial", d.version())
	_, err := d.src.Apply(ctx, MinTrial)
	must(err)
	d.edit()
	if _, err = d.src.Confirm(ctx); err == nil || strings.Contains(err.Error(), "nothing waits") || strings.Contains(err.Error(), "went back at") {
		fmt.Println("confirmed", d.version())
	} else {
		must(err)
	}
	list, err := keep.Histories(d.dir+"/state", "a.toml")
	must(err)
	for _, r := range list[:min(len(list), 3)] {
		_, text, err := d.src.store.Revision("", r.Number)
		must(err)
		fmt.Println("try", strings.TrimPrefix(strings.TrimSpace(string(text)), "a "))
		_, err = d.src.Rollback(ctx, "", r.Number)
		must(err)
		fmt.Println("is", d.version())
	}
}

func must(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

// Whenever the process is killed while it applies, confirms or rolls back, the next one
// uses what was in use before that, or what would have been after.
func TestKilledProcessKeepsDecisions(t *testing.T) {
	dir := t.TempDir()
	check(t, errors.Join(os.Mkdir(dir+"/etc", 0o755), os.Mkdir(dir+"/state", 0o755)))
	write(t, filepath.Join(dir, "etc", "a.toml"), "a 1\n")
	allowed := []string{"1"}
	decisions, told, trials := 0, []string(nil), []string(nil)
	for range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), decideDir+"="+dir)
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		var kill *time.Timer
		first := true
		for lines := bufio.NewScanner(out); lines.Scan(); {
			what, version, _ := strings.Cut(lines.Text(), " ")
			told = append(told, lines.Text())
			switch {
			case what == "is" && first:
				if !slices.Contains(slices.Concat(allowed, trials), version) {
					t.Errorf("after a kill version %s is in use, want one of %q or %q:\n%q", version, allowed, trials, told[max(0, len(told)-20):])
				}
				told = append(told, "killed")
				kill = time.AfterFunc(rand.N(500*time.Millisecond), func() { _ = cmd.Process.Kill() })
				fallthrough
			case what == "is":
				allowed, first = []string{version}, false
				decisions++
			case what == "try":
				allowed = append(allowed, version)
			case what == "trial":
				trials = append(trials, version)
			case what == "confirmed":
				allowed, trials = []string{version}, nil
				decisions++
			default:
				t.Error(lines.Text())
			}
		}
		_ = cmd.Wait() // killed
		if kill == nil || kill.Stop() {
			t.Fatal("it ended by itself")
		}
	}
	t.Logf("%d decisions", decisions)
}

// A trial ends on the disk with what it goes back to, also where a unit is accepted meanwhile.
func TestEndTrialAtOnce(t *testing.T) {
	bubble(t, func(h *host) {
		h.write("a.toml", "a 1\n")
		h.start()
		moment()
		h.apply(time.Minute)
		h.change(func() { h.write("a.toml", "a 2\n") })
		parse := h.src.parseCopy
		h.src.parseCopy = func(rules read.Rules, ctx context.Context, path string, data []byte, before read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
			h.src.Accepted(nil)
			check(t, h.src.store.Flush(ctx))
			text, err := os.ReadFile(h.state + "/lastgood/decisions")
			check(t, err)
			if d, err := parseDecisions(text); err != nil || d.trial == nil {
				t.Errorf("before it goes back, the disk has %s (%v)", text, err)
			}
			return parse(rules, ctx, path, data, before)
		}
		pass(time.Minute)
		h.uses("gone back", "a 1")
	})
}
