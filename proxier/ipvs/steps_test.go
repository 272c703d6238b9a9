package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A server that a sync was about to make when it was told to end is not ours.
func TestServersThatASyncDidNotComeToMake(t *testing.T) {
	dir := t.TempDir()
	b := &owner{record: open(t, dir, here), refused: refused{}, conn: &lvs.Conn{}}
	srv := &server{Server: lvs.Server{Key: tcp("10.96.0.1:80")}}
	servers := map[lvs.Key]*server{srv.Key: srv}
	steps := []step{{op: addServer, key: srv.Key, srv: srv}}
	b.recordPlanned([]lvs.Key{srv.Key}, &difference{first: steps}, servers, &proxier.Failures{})
	if !open(t, dir, here).owns(srv.Key) {
		t.Error("it is not recorded before it is made")
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	b.runSteps(stopped, steps, servers, &proxier.Failures{})
	b.disownUnsent()
	flush(t, b.record)
	if got := open(t, dir, here); got.owns(srv.Key) {
		t.Errorf("recorded:\n%s", got.lines())
	}
}

// A server that another program removed just before us is not ours any more, but
// for the lack of a destination it is.
func TestAnotherProgramRemovesAServer(t *testing.T) {
	for _, tt := range []struct {
		op   op
		err  error
		ours bool
	}{
		{updateServer, lvs.ErrNoServer, false}, {addDest, lvs.ErrNoServer, false}, {updateDest, lvs.ErrNoServer, false},
		{updateDest, lvs.ErrNotExist, true},
	} {
		b := &owner{record: open(t, "", here)}
		s := step{op: tt.op, key: tcp("10.96.0.1:80")}
		b.record.own(s.key)
		err := b.recordResult(s, fmt.Errorf("changing: %w", tt.err))
		if !errors.Is(err, lvs.ErrNotExist) || b.record.owns(s.key) != tt.ours {
			t.Errorf("%d, %v: error %v, recorded %q", tt.op, tt.err, err, b.record.lines())
		}
	}
}

// What the kernel refuses for a reason that nobody knows is set aside, and named;
// an error that may be of the moment fails the sync.
func TestUnknownRefusals(t *testing.T) {
	srv := &server{Server: lvs.Server{Key: tcp("10.96.0.1:80")}}
	for _, op := range []op{addServer, updateServer, addDest} {
		b := &owner{record: open(t, "", here), refused: refused{}}
		s := step{op: op, key: srv.Key, srv: srv}
		b.record.own(s.key)
		if err := b.recordResult(s, fmt.Errorf("adding: %w: %w", lvs.ErrRefused, syscall.ERANGE)); err != nil || b.record.owns(s.key) != (op != addServer) {
			t.Errorf("%d: error %v, recorded %q", op, err, b.record.lines())
		}
		if err := b.refused.unserved(); !errors.Is(err, syscall.ERANGE) {
			t.Errorf("%d: unserved: %v", op, err)
		}
		if err := b.recordResult(s, syscall.ENOMEM); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%d: without memory: %v", op, err)
		}
	}
}

// A server that another program made just before us is not ours, in the file
// neither: it must not be removed should the process end now.
func TestAnotherProgramIsFaster(t *testing.T) {
	dir := t.TempDir()
	b := &owner{record: open(t, dir, here), refused: refused{}}
	srv := &server{Server: lvs.Server{Key: tcp("10.96.0.1:80")}, name: policy.ServicePortName{Key: source.Key{Namespace: "default", Name: "web"}}}
	servers := map[lvs.Key]*server{srv.Key: srv, tcp("10.96.0.2:80"): srv}
	b.recordPlanned([]lvs.Key{srv.Key, tcp("10.96.0.2:80")}, &difference{}, servers, &proxier.Failures{})
	s := step{op: addServer, key: srv.Key, srv: srv}
	s.undo(servers)
	if err := b.recordResult(s, fmt.Errorf("adding: %w", lvs.ErrExist)); err != nil {
		t.Error(err)
	}
	if got := open(t, dir, here); got.owns(srv.Key) || !got.owns(tcp("10.96.0.2:80")) {
		t.Errorf("recorded: %s", got.lines())
	}
	if err := b.refused.unserved(); err == nil || !strings.Contains(err.Error(), "default/web") || len(b.refused.missingEntries(servers)) > 0 {
		t.Errorf("not served: %v, withheld: %v", err, b.refused.missingEntries(servers))
	}
}

// What is told of a server that is not there, one that another has, one that lacks some
// destinations, or all that take new connections, and a node port that is there on another address.
func TestUnservedFrontends(t *testing.T) {
	frontend := func(port uint16, kind policy.Kind) *policy.Frontend {
		return &policy.Frontend{Key: policy.FrontendKey{Port: port, Kind: kind}}
	}
	b := holdings{servers: map[lvs.Key]*server{}, claims: &frontendPairs{by: map[lvs.Key]frontendPair{}, host: policy.Host{NodePortAddrs: make([]netip.Addr, 2)}}}
	without := refused{}
	for port, r := range map[uint16]refusal{1: {}, 2: {foreign: true}, 3: {}, 4: {}, 5: {}} {
		key := lvs.Key{Port: port}
		without[key] = r
		b.claims.by[key] = frontendPair{address: frontend(port, policy.VIP)}
	}
	b.servers[lvs.Key{Port: 3}] = &server{dests: []lvs.Destination{{Weight: 0}, {Weight: 1}}}
	b.servers[lvs.Key{Port: 5}] = &server{dests: []lvs.Destination{{Weight: 0}}}
	b.claims.by[lvs.Key{Port: 4}] = frontendPair{nodePort: frontend(4, policy.NodePort)}
	var u *proxier.PartialError
	if !errors.As(b.unserved(without), &u) {
		t.Fatal("nothing is unserved")
	}
	for port, whole := range map[uint16]bool{1: true, 2: true, 3: false, 5: true} {
		if got, ok := u.Frontends[policy.FrontendKey{Port: port}]; !ok || got != whole {
			t.Errorf("%d: %v, %v; want %v", port, got, ok, whole)
		}
	}
	if whole, ok := u.Frontends[policy.FrontendKey{Port: 4, Kind: policy.NodePort}]; !ok || whole {
		t.Errorf("node port: %v, %v", whole, ok)
	}
}

// What the kernel does not take is missing in what it holds, and in nothing else
// that has the same destinations.
func TestRefusedDestinationsAreNotHeld(t *testing.T) {
	pool := []lvs.Destination{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}, {AddrPort: netip.MustParseAddrPort("10.0.0.255:80"), Weight: 1}}
	key, other := tcp("10.96.0.1:80"), tcp("10.96.0.2:80")
	servers := map[lvs.Key]*server{key: {dests: pool}, other: {dests: pool}}
	step{op: addDest, key: key, dest: pool[1]}.undo(servers)
	if got := servers[key].dests; !slices.Equal(got, pool[:1]) || len(servers[other].dests) != 2 || pool[1].Weight != 1 {
		t.Errorf("held %v, by others %v", got, servers[other].dests)
	}
}
