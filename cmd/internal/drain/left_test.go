package drain

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What is left is counted by service, of the target alone, and not more often than it may cost.
func TestConnectionsLeftAreCountedByService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		d, store := newTestDraining(l)
		looks, cost := 0, time.Millisecond
		var failed error
		d.left.Open = func(_ context.Context, fam policy.Family, to netip.Addr, visit func(netip.Addr, proxier.FrontendAddr)) error {
			looks++
			time.Sleep(cost)
			for _, c := range []struct {
				protocol source.Protocol
				dst, at  string
			}{
				{source.TCP, "10.96.0.1:80", "192.0.2.1"}, {source.TCP, "10.96.0.1:80", "192.0.2.1"}, {source.TCP, "10.96.0.1:80", "192.0.2.2"},
				{source.UDP, "10.96.0.2:80", "192.0.2.1"}, {source.TCP, "[fd00:96::1]:80", "fd00::1"},
				{source.TCP, "203.0.113.1:80", "192.0.2.1"}, // of another program
			} {
				at := netip.MustParseAddr(c.at)
				if policy.FamilyOf(at) == fam && (!to.IsValid() || to == at) {
					visit(at, proxier.FrontendAddr{Protocol: c.protocol, AddrPort: netip.MustParseAddrPort(c.dst)})
				}
			}
			return failed
		}
		left := func(text, want string) {
			t.Helper()
			got, err := d.answerLeft(t.Context(), url.Values{control.TargetKey: {text}})
			if err != nil || got.String() != want || !got.Drained {
				t.Errorf("%s: %q, drained %v, %v; want %q", text, got.String(), got.Drained, err, want)
			}
		}
		for _, text := range []string{"192.0.2.1", "web/192.0.2.1", "fd00::1", "192.0.2.3", "node"} {
			_ = store.Drain(drainTarget(t, text), policy.Drain{})
		}
		left("192.0.2.1", "not known: the first sync is not complete")
		close(l.ready)
		left("192.0.2.1", "2 connections, 1 UDP flow: default/web 2, default/dns 1")
		left("web/192.0.2.1", "2 connections: default/web 2")
		left("fd00::1", "1 connection: default/web 1")
		left("192.0.2.3", "nothing")
		left("node", "4 connections, 1 UDP flow: default/web 4, default/dns 1")
		if got, err := d.answerLeft(t.Context(), url.Values{control.TargetKey: {"192.0.2.2"}}); err != nil || got.Drained {
			t.Errorf("of what is not drained: %+v, %v", got, err)
		}
		if _, err := d.answerLeft(t.Context(), url.Values{}); err == nil {
			t.Error("no error without a target")
		}
		looks = 0
		left("192.0.2.1", "2 connections, 1 UDP flow: default/web 2, default/dns 1")
		cost = time.Second // much to read
		time.Sleep(time.Second)
		for range 20 {
			left("192.0.2.1", "2 connections, 1 UDP flow: default/web 2, default/dns 1")
			time.Sleep(time.Second)
		}
		if looks < 2 || looks > 3 {
			t.Errorf("%d looks of a second each in 20 seconds, want one in ten", looks)
		}
		failed = errors.New("no memory")
		left("web/192.0.2.1", "not known: counting connections: no memory")
	})
}

// A look lists connections to the one endpoint that is waited for, whatever else is drained, and is not repeated for others.
func TestDrainLeftOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		l.took = 0
		close(l.ready)
		d, store := newTestDraining(l)
		for _, text := range []string{"node", "192.0.2.1", "192.0.2.2"} {
			_ = store.Drain(drainTarget(t, text), policy.Drain{})
		}
		var listed []netip.Addr
		d.left.Open = func(_ context.Context, _ policy.Family, to netip.Addr, _ func(netip.Addr, proxier.FrontendAddr)) error {
			listed = append(listed, to)
			time.Sleep(time.Second)
			return nil
		}
		target := drainTarget(t, "192.0.2.1")
		if _, _, err := d.left.of(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if _, err := d.undrain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, "192.0.2.2")}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.left.of(t.Context(), target); err != nil || !slices.Equal(listed, []netip.Addr{target.Addr}) {
			t.Errorf("connections to %v were listed, want those to %s, once: %v", listed, target.Addr, err)
		}
	})
}

// webConnections has one connection of web to each of two endpoints; a look takes a second.
func webConnections(looks *int) func(context.Context, policy.Family, netip.Addr, func(netip.Addr, proxier.FrontendAddr)) error {
	return func(ctx context.Context, fam policy.Family, to netip.Addr, visit func(netip.Addr, proxier.FrontendAddr)) error {
		*looks++
		time.Sleep(time.Second)
		for _, at := range []string{"192.0.2.1", "192.0.2.2"} {
			if a := netip.MustParseAddr(at); fam == policy.IPv4 && (!to.IsValid() || to == a) {
				visit(a, proxier.FrontendAddr{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("10.96.0.1:80")})
			}
		}
		return ctx.Err()
	}
}

// Connections of services that are gone still count, until nothing is drained.
func TestDrainLeftOfFormerServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		close(l.ready)
		d, _ := newTestDraining(l)
		looks := 0
		d.left.Open = webConnections(&looks)
		left := func(text, want string) {
			t.Helper()
			time.Sleep(time.Minute)
			got, err := d.answerLeft(t.Context(), url.Values{control.TargetKey: {text}})
			if err != nil || got.String() != want || !got.Drained {
				t.Errorf("%s: %q, drained %v, %v; want %q", text, got.String(), got.Drained, err, want)
			}
		}
		drain := func(text string) {
			t.Helper()
			_, err := d.drain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, text)})
			saysDrain(t, text, err, "")
		}
		drain("node")
		left("node", "2 connections: default/web 2")
		had := l.services
		l.services = nil
		left("node", "2 connections: default/web 2") // those seen before
		d.left.forget()
		l.services = had
		drain("192.0.2.1")
		drain("web/192.0.2.2")
		drain("dns/192.0.2.2")
		l.services = nil
		left("192.0.2.1", "1 connection: default/web 1") // never seen before
		left("web/192.0.2.2", "1 connection: default/web 1")
		left("dns/192.0.2.2", "nothing")
		for _, text := range []string{"node", "192.0.2.1", "web/192.0.2.2", "dns/192.0.2.2"} {
			if _, err := d.undrain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, text)}); err != nil {
				t.Error(err)
			}
		}
		if len(d.left.former) > 0 {
			t.Errorf("remembered: %v", d.left.former)
		}
	})
}

// Many waits are served by few looks, and a look from before a drain is no answer to it.
func TestDrainLeftIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		l.took = 0
		close(l.ready)
		d, store := newTestDraining(l)
		looks := 0
		d.left.Open = webConnections(&looks)
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 40 {
			at := conditions.DrainTarget{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
			_ = store.Drain(at, policy.Drain{})
			all.Go(func() {
				if seen, _, err := d.left.of(t.Context(), at); err != nil || len(seen) != 1 && (i == 1 || i == 2) {
					t.Errorf("%s: %+v, %v", at.Addr, seen, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begin); looks > 2 || took > 2*time.Second {
			t.Errorf("%d looks in %v", looks, took)
		}
		target := drainTarget(t, "192.0.2.1")
		_, was, _ := d.left.of(t.Context(), target)
		all.Go(func() { // a look that begins before the drain, for another
			_, _, _ = d.left.of(t.Context(), drainTarget(t, "192.0.2.99"))
		})
		time.Sleep(time.Second / 2)
		if _, err := d.drain(t.Context(), control.Peer{}, control.Drain{Target: target}); err != nil {
			t.Error(err)
		}
		drained := time.Now()
		all.Wait()
		if _, is, err := d.left.of(t.Context(), target); err != nil || is.Before(drained) {
			t.Errorf("a look of %v, as %v, for a drain of %v: %v", is, was, drained, err)
		}
		d.left.turn <- struct{}{} // a look that hangs
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("gone"))
		_, _, err := d.left.of(ctx, drainTarget(t, "192.0.2.98"))
		saysDrain(t, "who has gone", err, "counting connections: gone")
		_, _, err = d.left.of(t.Context(), drainTarget(t, "192.0.2.98"))
		saysDrain(t, "who waits", err, "counting connections: not counted within 5s")
	})
}
