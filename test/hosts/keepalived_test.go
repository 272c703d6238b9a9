//go:build netns

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// moveTime is within what an address moves once svcproxy says that it should, or keepalived is gone:
	// timers of the example allow 2.9 s, to which tests add as much for a busy machine.
	moveTime = 3 * time.Second

	// checkTime is the interval of checks of the example.
	checkTime = time.Second
)

// The example of keepalived as it stands: addresses move to the other host when this one
// cannot serve, or is gone, and connections live on.
func TestKeepalived(t *testing.T) {
	p := newKeepalivedPair(t)
	held := p.connect(t)
	first := p.restartsInPlace(t, p.holder(t))
	p.moves(t, "endpoints out of reach", first, p.cut, held)
	p.rejoin(t, first)
	p.recovers(t, first)
	p.moves(t, "keepalived killed", other(first), p.killKeepalived, held)
	p.keepalives(t, other(first))
	p.moves(t, "svcproxy stopped", first, p.stop, held)
	p.stays(t, other(first))
	if soaking {
		p.moreMoves(t, held)
	}
}

func other(i int) int { return 1 - i }

// check is what keepalived asks.
func (p *keepalivedPair) check(i int) error {
	_, err := p.daemons[i].Command("status", "--check", "web")
	return err
}

// await waits for something that takes less than a move of addresses does.
func (p *keepalivedPair) await(t *testing.T, what string, check func() error) {
	t.Helper()
	if err := pace.Poll(3*moveTime, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// has returns how many of the shared addresses a host has.
func (p *keepalivedPair) has(i int) (n int, err error) {
	err = p.hosts[i].Do(func() error {
		addrs, err := net.InterfaceAddrs()
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && slices.Contains(p.shared, prefix.Addr()) {
				n++
			}
		}
		return err
	})
	return n, err
}

// holds returns an error unless a host has all shared addresses.
func (p *keepalivedPair) holds(i int) error {
	if n, err := p.has(i); err != nil || n != len(p.shared) {
		return errors.Join(err, fmt.Errorf("%s has %d of %d addresses", p.hosts[i].Role, n, len(p.shared)))
	}
	return nil
}

// lacks returns an error if a host has any of them.
func (p *keepalivedPair) lacks(i int) error {
	if n, err := p.has(i); err != nil || n > 0 {
		return errors.Join(err, fmt.Errorf("%s has %d addresses, want none", p.hosts[i].Role, n))
	}
	return nil
}

// alone returns an error unless one host has all, and the other none.
func (p *keepalivedPair) alone(i int) error { return errors.Join(p.holds(i), p.lacks(other(i))) }

// holder waits until one host has all addresses, and says which.
func (p *keepalivedPair) holder(t *testing.T) (i int) {
	t.Helper()
	p.await(t, "nobody holds the addresses", func() error {
		i = 0
		if p.alone(0) == nil {
			return nil
		}
		i = 1
		return p.alone(1)
	})
	return i
}

// connect makes connections to both addresses of the service, which are to last.
func (p *keepalivedPair) connect(t *testing.T) (held []*lab.Conn) {
	t.Helper()
	p.holder(t)
	for n := range 2 * 150 {
		to := netip.AddrPortFrom(p.service[n%2], 80)
		conn, answer := lab.Connect(lab.Question{From: p.client, Protocol: source.TCP, To: to})
		if conn == nil || !p.client.Owns(answer.Source) {
			t.Fatalf("%s: %s, want one that saw %s", to, answer, p.client.Addr())
		}
		t.Cleanup(func() { conn.SetLinger(0); conn.Close() })
		held = append(held, conn)
	}
	return held
}

// moves has something happen to the host that holds the addresses, and waits for the other.
func (p *keepalivedPair) moves(t *testing.T, what string, from int, fail func(*testing.T, int), held []*lab.Conn) {
	t.Helper()
	if err := p.alone(from); err != nil {
		t.Fatalf("before %s: %v", what, err)
	}
	quiet := p.talk(t, what, held[:20])
	defer quiet()
	fail(t, from)
	begin := time.Now()
	if err := pace.Poll(2*moveTime, func() error { return p.holds(other(from)) }); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, p.keepers[other(from)].log(t))
	}
	moved := time.Since(begin)
	quiet()
	for _, conn := range held {
		if err := conn.Echo(moveTime); err != nil {
			p.explain(t, conn)
			t.Fatalf("%s: a connection to %s: %v", what, conn.RemoteAddr(), err)
		}
	}
	t.Logf("%s: addresses moved within %v, %d connections went on after %v", what, moved, len(held), time.Since(begin))
}

// talk has connections echo all the time until the function that it returns is called. Data
// that is lost is sent again when twice the time has passed, TCP's way. A client that has only to listen, as its
// question was confirmed before the move and not answered, says so to the new host by a keepalive, as docs/maglev.md asks for.
func (p *keepalivedPair) talk(t *testing.T, what string, conns []*lab.Conn) (quiet func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, conn := range conns {
		if err := conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: moveTime, Interval: moveTime}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := conn.Echo(5 * moveTime); err != nil {
					p.explain(t, conn)
					t.Errorf("%s, while it moves: a connection to %s: %v", what, conn.RemoteAddr(), err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// cut takes a host from its endpoints, and waits until it says so. Its link stays up. What endpoints answered last is lost.
func (p *keepalivedPair) cut(t *testing.T, i int) {
	t.Helper()
	again := p.loseAnswers(t)
	begin := time.Now()
	shell(t, p.inside, "ip", "link", "set", p.hosts[i].Role, "nomaster")
	again()
	p.await(t, "a host that reaches no endpoint is still good", func() error {
		if p.check(i) == nil {
			return errors.New("the check passes")
		}
		return nil
	})
	t.Logf("status --check fails %v after the cut", time.Since(begin))
}

// loseAnswers has the endpoints confirm what clients ask, and no answer arrive, until the function that it returns is called.
func (p *keepalivedPair) loseAnswers(t *testing.T) (again func()) {
	t.Helper()
	all := func(command string) {
		for _, h := range p.endpoints {
			shell(t, h, "nft", command)
		}
	}
	all("add table inet lost; add chain inet lost out { type filter hook output priority 0; }; add rule inet lost out tcp sport 8080 tcp flags & psh == psh drop")
	time.Sleep(pace.Scale(300 * time.Millisecond)) // each of those that talk has asked meanwhile
	return func() { all("delete table inet lost") }
}

// rejoin undoes cut.
func (p *keepalivedPair) rejoin(t *testing.T, i int) {
	t.Helper()
	shell(t, p.inside, "ip", "link", "set", p.hosts[i].Role, "master", "br0")
	p.await(t, "a host that reaches endpoints again", func() error { return p.check(i) })
}

// rises waits until keepalived sees that a host is good again.
func (p *keepalivedPair) rises(t *testing.T, i int) {
	t.Helper()
	p.await(t, "keepalived does not see that "+p.hosts[i].Role+" is good again", func() error { return p.keepers[i].rated(t, "from 50 to 100") })
}

// recovers waits until a host is as good as the other, which has taken its addresses and keeps them.
func (p *keepalivedPair) recovers(t *testing.T, i int) {
	t.Helper()
	p.rises(t, i)
	if err := p.alone(other(i)); err != nil {
		t.Errorf("after %s is good again: %v", p.hosts[i].Role, err)
	}
}

// stop stops svcproxy.
func (p *keepalivedPair) stop(t *testing.T, i int) {
	t.Helper()
	if err := p.daemons[i].Stop(); err != nil {
		t.Fatal(err)
	}
}

// start starts svcproxy.
func (p *keepalivedPair) start(t *testing.T, i int) {
	t.Helper()
	if err := p.daemons[i].Start(); err != nil {
		t.Fatal(err)
	}
}

// restartsInPlace restarts svcproxy, so that one check fails, as in an upgrade: no address moves.
// It returns who has them.
func (p *keepalivedPair) restartsInPlace(t *testing.T, i int) int {
	t.Helper()
	k := p.keepers[i]
	passed := k.saidOften(t, "now returning 0")
	p.stop(t, i)
	var begin time.Time // no later than the check that fails
	p.await(t, "no check has failed", func() error {
		now := time.Now()
		err := k.said(t, "now returning 3")
		if err != nil {
			begin = now
		}
		return err
	})
	p.start(t, i)
	took := time.Since(begin)
	p.await(t, "no check has passed", func() error {
		if k.saidOften(t, "now returning 0") == passed {
			return errors.New("keepalived has not said so")
		}
		return nil
	})
	if k.rated(t, "from 100 to 50") == nil {
		if took < checkTime*9/10 { // else another check may have failed
			t.Errorf("a restart of svcproxy, whose start took %v, moved addresses:\n%s", took, k.log(t))
		}
		p.rises(t, i)
	}
	return p.holder(t)
}

// stays stops svcproxy on the second host too: where both are at fault, addresses stay.
func (p *keepalivedPair) stays(t *testing.T, i int) {
	t.Helper()
	p.stop(t, i)
	p.await(t, "keepalived does not see that both are at fault", func() error { return p.keepers[i].rated(t, "from 100 to 50") })
	if err := p.alone(i); err != nil {
		t.Errorf("with both hosts at fault: %v", err)
	}
	for _, addr := range p.service {
		q := lab.Question{From: p.client, Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80)}
		if got := lab.Ask(q); got.Outcome != lab.Answered {
			t.Errorf("with both hosts at fault: %s: %s", q, got)
		}
	}
}

// moreMoves moves addresses to and fro, each time by something else.
func (p *keepalivedPair) moreMoves(t *testing.T, held []*lab.Conn) {
	t.Helper()
	for i := range p.hosts {
		p.start(t, i)
		p.rises(t, i)
	}
	from := p.holder(t)
	p.moves(t, "host drained", from, p.drain, held)
	if _, err := p.daemons[from].Command("undrain", "--node"); err != nil {
		t.Fatal(err)
	}
	p.rises(t, from)
	p.moves(t, "svcproxy hung", other(from), p.hang, held)
	if err := p.daemons[other(from)].Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.rises(t, other(from))
	p.moves(t, "keepalived stopped", from, p.stopKeepalived, held)
}

func (p *keepalivedPair) drain(t *testing.T, i int) {
	t.Helper()
	if _, err := p.daemons[i].Command("drain", "--node", "--reason", "upgrade"); err != nil {
		t.Fatal(err)
	}
}

func (p *keepalivedPair) hang(t *testing.T, i int) {
	t.Helper()
	if err := p.daemons[i].Freeze(); err != nil {
		t.Fatal(err)
	}
	p.await(t, "keepalived does not see that svcproxy hangs", func() error { return p.keepers[i].rated(t, "from 100 to 50") })
}

func (p *keepalivedPair) stopKeepalived(t *testing.T, i int) {
	t.Helper()
	p.keepers[i].end(t)
}

// killKeepalived kills keepalived, which leaves its addresses behind.
func (p *keepalivedPair) killKeepalived(t *testing.T, i int) {
	t.Helper()
	p.keepers[i].kill(t)
}
