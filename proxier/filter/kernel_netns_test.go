//go:build netns

package filter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A delta that changes only members of sets starts no program: here there is none.
func TestMembersNeedNoProgram(t *testing.T) {
	netnstest.Enter(t)
	ctx := context.Background()
	k, err := Open(ctx, policy.IPv4)
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	w := backendtest.NewWorld(policy.IPv4)
	r := layout.NewRules(policy.IPv4)
	resync(t, k, r, w)

	k.tool = &xtables.Tool{}
	empty := backendtest.Web(policy.IPv4, 1, 0)
	if err := k.Apply(ctx, r.Update(w.State, w.Put(empty.Key, empty)), r); err != nil {
		t.Errorf("a service that refuses: %v", err)
	}
	l, err := k.sets.List(ctx, "SVCP-REJECT-4")
	if err != nil || len(l.Entries) != 1 || l.Entries[0].String() != "10.96.0.2,tcp:80" {
		t.Errorf("SVCP-REJECT-4: got %v, %v", l, err)
	}
	if err := k.Apply(ctx, r.Update(w.State, w.Put(empty.Key, nil)), r); err != nil {
		t.Errorf("the same removed: %v", err)
	}
	web := backendtest.Web(policy.IPv4, 2, 1)
	if err := k.Apply(ctx, r.Update(w.State, w.Put(web.Key, web)), r); err == nil {
		t.Error("rules were written without a program")
	}
	if k.CanApply() {
		t.Error("an error does not make the next sync a full one")
	}
}

// watched returns a Kernel of the nft variant that holds what a World without services
// needs, and is watched. What it tells of is sent.
func watched(t *testing.T) (*Kernel, *layout.Rules, *backendtest.World, <-chan proxier.ForeignChange) {
	t.Helper()
	k, r, w, told := watchedBy(t, xtables.NFT)
	pace.Until(t, "watching", k.events.watching.Load)
	if damaged, err := k.Look(context.Background()); err != nil || damaged { // what was before is unknown
		t.Fatalf("first look: %v, %v", damaged, err)
	}
	return k, r, w, told
}

func watchedBy(t *testing.T, v xtables.Variant) (*Kernel, *layout.Rules, *backendtest.World, <-chan proxier.ForeignChange) {
	t.Helper()
	netnstest.Enter(t)
	ctx, cancel := context.WithCancel(context.Background())
	k, err := open(ctx, policy.IPv4, &xtables.Choice{Use: toolOf(t, v)})
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	w := backendtest.NewWorld(policy.IPv4)
	r := layout.NewRules(policy.IPv4)
	resync(t, k, r, w)
	ended, told := make(chan error), make(chan proxier.ForeignChange, 100)
	go netnstest.Here(t, func() { ended <- k.Watch(ctx, func(e proxier.ForeignChange) { told <- e }) })()
	t.Cleanup(func() { cancel(); <-ended })
	return k, r, w, told
}

// toolOf returns a variant of iptables, whichever plain iptables means.
func toolOf(t *testing.T, v xtables.Variant) *xtables.Tool {
	t.Helper()
	tools, err := xtables.Installed(context.Background(), false)
	fatal.If(t, err)
	for _, tool := range tools {
		if tool.Variant == v {
			return tool
		}
	}
	t.Fatalf("this host has no iptables-%s, only %v; install the package iptables", v, tools)
	return nil
}

// resync makes the kernel hold what w needs.
func resync(t *testing.T, k *Kernel, r *layout.Rules, w *backendtest.World) {
	t.Helper()
	fatal.If(t, r.Reset(w.State))
	held, err := k.Read(context.Background(), r)
	fatal.If(t, err)
	fatal.If(t, k.Resync(context.Background(), held, r, w.State))
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// As long as nf_tables tells of no change, a look reads no table, here it could not,
// except for one in maxUnread.
func TestLooksAreCheap(t *testing.T) {
	k, r, w, _ := watched(t)
	ctx := context.Background()
	web := backendtest.Web(policy.IPv4, 1, 1)
	fatal.If(t, k.Apply(ctx, r.Update(w.State, w.Put(web.Key, web)), r))
	k.tool = &xtables.Tool{Variant: xtables.NFT}
	for n := 1; n < maxUnread; n++ {
		if damaged, err := k.Look(ctx); err != nil || damaged {
			t.Fatalf("look %d after a change of our own: %v, %v", n, damaged, err)
		}
	}
	if _, err := k.Look(ctx); err == nil {
		t.Errorf("look %d did not read", maxUnread)
	}
	k.events.dirty.Store(false)
	command(t, "iptables-nft", "-t", "nat", "-F", layout.MarkMasq)
	pace.Until(t, "a change by another process is heard of", k.events.dirty.Load)
}

// What a look passes over, as a sync is changing it, the next look reads.
func TestNextLookReadsWhatWasPassedOver(t *testing.T) {
	k, _, _, _ := watched(t)
	busy := &looks.Objects[object]{}
	busy.Add(chainObject("nat", layout.MarkMasq))
	k.mirror.begin(busy)
	command(t, "iptables-nft", "-t", "nat", "-F", layout.MarkMasq)
	k.events.dirty.Store(true)
	if damaged, err := k.Look(context.Background()); err != nil || damaged {
		t.Fatalf("look at what a sync is changing: %v, %v", damaged, err)
	}
	k.mirror.end(func(*mirror) {})
	if damaged, err := k.Look(context.Background()); err != nil || !damaged {
		t.Errorf("look after that: %v, %v", damaged, err)
	}
}

// A repair of sets reads no table: here it could not.
func TestRepairOfSetsReadsNoTable(t *testing.T) {
	k, r, w, _ := watched(t)
	command(t, "ipset", "add", "SVCP-REJECT-4", "192.0.2.1,tcp:1")
	if damaged, err := k.Look(t.Context()); err != nil || !damaged {
		t.Fatalf("look: %v, %v", damaged, err)
	}
	k.tool = &xtables.Tool{Variant: xtables.NFT}
	fatal.If(t, k.Repair(t.Context(), r, w.State))
	if l, err := k.sets.List(t.Context(), "SVCP-REJECT-4"); err != nil || len(l.Entries) != 0 {
		t.Errorf("SVCP-REJECT-4: got %v, %v", l, err)
	}
	if damaged, err := k.Look(t.Context()); err != nil || damaged || !k.CanApply() {
		t.Errorf("after the repair: damaged %v, %v; can apply: %v", damaged, err, k.CanApply())
	}
}

// A look beside a repair, which may read what is not repaired yet, finds nothing; after it there is nothing.
func TestLookBesideRepair(t *testing.T) {
	k, r, w, _ := watched(t)
	command(t, "iptables-nft", "-t", "nat", "-F")
	pace.Until(t, "the flush is found", k.Damaged)
	release, err := k.tool.LockWriter(t.Context())
	fatal.If(t, err)
	repaired := make(chan error)
	go netnstest.Here(t, func() { repaired <- k.Repair(t.Context(), r, w.State) })()
	pace.Until(t, "the repair begins", func() bool { return !k.Damaged() })
	k.events.dirty.Store(true)
	if damaged, err := k.Look(t.Context()); err != nil || damaged {
		t.Errorf("look beside a repair: %v, %v", damaged, err)
	}
	release()
	fatal.If(t, <-repaired)
	k.events.dirty.Store(true)
	if damaged, err := k.Look(t.Context()); err != nil || damaged {
		t.Errorf("look after a repair: %v, %v", damaged, err)
	}
}

// A look that waits for another one, which an event began, ends when it is told to:
// the caller that closes the backend waits for it.
func TestLookDoesNotWaitForever(t *testing.T) {
	k, _, _, _ := watched(t)
	k.looking <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { _, err := k.Look(ctx); ended <- err }()
	time.Sleep(10 * time.Millisecond) // it waits, or comes too late to
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("look: %v", err)
		}
	case <-time.After(pace.Scale(10 * time.Second)):
		t.Error("it waits for the other one")
	}
	<-k.looking
}

// An event while nothing is known, as during the first sync, is told of when that has ended.
func TestEventDuringFirstSync(t *testing.T) {
	k, _, _, told := watched(t)
	chains, sets, jumps := k.mirror.chains, k.mirror.sets, k.mirror.jumps
	k.mirror.forget()
	command(t, "iptables-nft", "-t", "nat", "-F", layout.MarkMasq)
	pace.Until(t, "a change by another process is heard of", k.events.dirty.Load)
	time.Sleep(minLookInterval / 2) // the event has been taken up
	k.mirror.end(func(m *mirror) { m.chains, m.sets, m.jumps = chains, sets, jumps })
	select {
	case <-told:
	case <-time.After(pace.Scale(20 * time.Second)):
		t.Error("nothing is told of")
	}
}

// The questions of the legacy variant wait while something is written, or they would
// find what is not there yet, and call it another program's work.
func TestCanaryWaitsForWrites(t *testing.T) {
	k, _, _, told := watchedBy(t, xtables.Legacy)
	k.mirror.begin(&looks.Objects[object]{})
	command(t, "iptables-legacy", "-t", "nat", "-F")
	select {
	case <-told:
		t.Error("told of during a write")
	case <-time.After(2 * time.Second):
	}
	k.mirror.end(func(*mirror) {})
	select {
	case <-told:
	case <-time.After(pace.Scale(20 * time.Second)):
		t.Error("not told of after the write")
	}
}

// A foreign rule that uses a set which is needed no more stops no sync. The set
// stays, empty, until the rule goes.
func TestSetOfForeignRule(t *testing.T) {
	k, r, w, _ := watched(t)
	ctx := context.Background()
	const old = "SVCP-SERVED-4"
	command(t, "ipset", "create", old, "hash:ip,port")
	command(t, "ipset", "add", old, "192.0.2.1,tcp:80")
	rule := []string{"INPUT", "-m", "set", "--match-set", old, "dst,dst", "-j", "ACCEPT"}
	command(t, "iptables-nft", append([]string{"-A"}, rule...)...)
	var warned bytes.Buffer
	k.SetLog(slog.New(slog.NewTextHandler(&warned, nil)))
	for _, how := range []string{"a full sync", "another"} {
		resync(t, k, r, w)
		l, err := k.sets.List(ctx, old)
		if err != nil || len(l.Entries) > 0 {
			t.Errorf("%s: got %v, %v", how, l, err)
		}
		if damaged, err := k.Look(ctx); err != nil || damaged {
			t.Errorf("look after %s: %v, %v", how, damaged, err)
		}
	}
	command(t, "ipset", "add", old, "192.0.2.1,tcp:80")
	if damaged, err := k.Look(ctx); err != nil || !damaged {
		t.Errorf("look when it has a member: %v, %v", damaged, err)
	}
	if err := k.Repair(ctx, r, w.State); err != nil {
		t.Error(err)
	}
	if damaged, err := k.Look(ctx); err != nil || damaged {
		t.Errorf("look after the repair: %v, %v", damaged, err)
	}
	if n := strings.Count(warned.String(), "a foreign rule uses it"); n != 1 {
		t.Errorf("warned %d times:\n%s", n, &warned)
	}
	command(t, "iptables-nft", append([]string{"-D"}, rule...)...)
	pace.Until(t, "the set is destroyed", func() bool {
		resync(t, k, r, w)
		l, err := k.sets.List(ctx, old)
		return l == nil && errors.Is(err, ipset.ErrNotExist)
	})
}

// While a large script waits for its turn, the listeners of this process are free.
func TestWaitingForTurnHoldsUpNobody(t *testing.T) {
	k, _, _, _ := watched(t)
	ctx, end := context.WithCancel(context.Background())
	release, err := k.tool.LockWriter(ctx)
	fatal.If(t, err)
	var script xtables.Script
	script.Set("nat", "SVCP-A", bytes.Repeat([]byte("-A SVCP-A -j RETURN\n"), unmonitoredScript/20+1))
	restored, unheard := make(chan error, 1), make(chan error, 1)
	go func() { restored <- k.restore(ctx, k.tool, &script) }()
	time.Sleep(100 * time.Millisecond) // it waits
	go func() { unheard <- k.events.conn.Unheard(1, func() error { return nil }) }()
	select {
	case err := <-unheard:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(pace.Scale(10 * time.Second)):
		t.Error("the other family waits")
	}
	end()
	if err := <-restored; !errors.Is(err, context.Canceled) {
		t.Errorf("restore: %v", err)
	}
	release()
}

// As long as the tables of the legacy variant are what they were, whatever packets
// count in them, a look reads none with a program, here it could not.
func TestLegacyLooksAreCheap(t *testing.T) {
	netnstest.Enter(t)
	command(t, "ip", "link", "set", "lo", "up")
	ctx := context.Background()
	legacy := toolOf(t, xtables.Legacy)
	k, err := open(ctx, policy.IPv4, &xtables.Choice{Use: legacy})
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	w, r := backendtest.NewWorld(policy.IPv4), layout.NewRules(policy.IPv4)
	resync(t, k, r, w)
	look := func(tool *xtables.Tool) (bool, error) {
		t.Helper()
		k.tool = tool
		return k.Look(ctx)
	}
	none := &xtables.Tool{Variant: xtables.Legacy}
	if _, err := look(none); err == nil {
		t.Error("the first look read nothing")
	}
	if damaged, err := look(legacy); err != nil || damaged {
		t.Fatalf("first look: %v, %v", damaged, err)
	}
	send(t, "127.0.0.1:9")
	if damaged, err := look(none); err != nil || damaged {
		t.Errorf("nothing but counters has changed: %v, %v", damaged, err)
	}
	command(t, "iptables-legacy", "-t", "nat", "-R", layout.MarkMasq, "1", "-j", "MARK", "--or-mark", "0x8000")
	if _, err := look(none); err == nil {
		t.Error("a rule was replaced, and nothing is read")
	}
	if damaged, err := look(legacy); err != nil || !damaged {
		t.Errorf("a rule was replaced: %v, %v", damaged, err)
	}
}

// send sends a packet, which rules count.
func send(t *testing.T, to string) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err == nil {
		_, err = conn.Write([]byte("counted"))
		err = errors.Join(err, conn.Close())
	}
	fatal.If(t, err)
}

// A rule in front of ours that comes while a sync compares everything is looked for again after it.
func TestRuleInFrontBesideSync(t *testing.T) {
	k, _, _, told := watched(t)
	k.mirror.Lock()
	chains := k.mirror.chains
	k.mirror.chains = nil // as while a sync reads
	k.mirror.Unlock()
	command(t, "iptables-nft", "-w", "-I", "FORWARD", "-j", "DROP")
	select {
	case c := <-told:
		t.Fatalf("told of %+v while nothing can be compared", c)
	case <-time.After(2 * minLookInterval):
	}
	k.mirror.Lock()
	k.mirror.chains = chains
	k.mirror.Unlock()
	pace.Until(t, "told of the rule", func() bool { return len(told) > 0 })
}

// While nothing is known of the kernel, as at a start, the other family does not write while tables are read, which
// would begin again; later it does.
func TestFirstReadingIsUndisturbed(t *testing.T) {
	k, r, _, _ := watched(t)
	release, err := k.tool.LockWriter(t.Context())
	fatal.If(t, err)
	defer release()
	if _, err := k.Read(t.Context(), r); err != nil {
		t.Errorf("reading beside a writer: %v", err)
	}
	k.mirror.forget()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := k.Read(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first reading does not wait for a writer: %v", err)
	}
}

// A commit of others at the beginning cancels nothing: what began again because of it comes to an end. One after the
// timeout does.
func TestContentionAfterTimeout(t *testing.T) {
	netnstest.Enter(t)
	const timeout = 200 * time.Millisecond
	for _, tt := range []struct {
		name string
		at   time.Duration
		want error
	}{{"at once", 0, nil}, {"after the timeout", 2 * timeout, errContended}} {
		err := cancelOnContention(t.Context(), 0, timeout, func(ctx context.Context) error {
			time.Sleep(tt.at)
			command(t, "nft", "add table inet neighbour; delete table inet neighbour")
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * timeout):
				return nil
			}
		})
		if !errors.Is(err, tt.want) {
			t.Errorf("a commit %s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}
