package healthz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// retry is how long to wait before an address that could not be bound is tried
// again. IPv6 addresses cannot be bound until duplicate detection is through,
// which takes 1 to 2 s.
const retry = 2 * time.Second

// A Server listens for the node on addresses of its own, and on the node port
// addresses for each service that has a health check port. An address that cannot
// be bound is tried again until it can: the services of the node matter more.
type Server struct {
	node   map[string]http.Handler // by listen address
	health *Health
	log    *slog.Logger
	wake   chan struct{} // has room for one
	failed func(loop.NodeHealth, string)

	nodeConns, checkConns *crowd // those of health check ports leave the node's alone

	mu     sync.Mutex
	checks map[uint16]loop.NodeHealth // by port
	host   *policy.Node
	faults map[string]string // listen address -> why it could not be bound

	open map[string]*http.Server // by listen address; of Run alone
	done sync.WaitGroup          // what serves them
}

// NewServer returns a server that answers with the handlers of node, which are by
// listen address; empty, a handler is nowhere.
func NewServer(node map[string]http.Handler, h *Health, log *slog.Logger) *Server {
	return &Server{
		node: node, health: h, log: log,
		wake: make(chan struct{}, 1), failed: func(loop.NodeHealth, string) {},
		nodeConns: newCrowd(), checkConns: newCrowd(),
		host: &policy.Node{}, open: map[string]*http.Server{}, faults: map[string]string{},
	}
}

// OnFailure has f told, before Run, of each service whose port cannot be bound, and why.
func (s *Server) OnFailure(f func(loop.NodeHealth, string)) { s.failed = f }

// SetNodeHealth replaces the services that are answered for.
func (s *Server) SetNodeHealth(checks []loop.NodeHealth) {
	m := make(map[uint16]loop.NodeHealth, len(checks))
	for _, c := range checks {
		m[c.Port] = c
	}
	s.mu.Lock()
	s.checks = m
	s.mu.Unlock()
	wake.Once(s.wake)
}

// SetNode replaces the node whose addresses services are answered for on.
func (s *Server) SetNode(n *policy.Node) {
	s.mu.Lock()
	s.host = n
	s.mu.Unlock()
	wake.Once(s.wake)
}

// Warnings names the addresses that could not be bound, and why.
func (s *Server) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.faults))
}

// Heard returns where it is heard that this host is drained: each address, of the node's those
// of the handler of address, and the health check ports by number. What could not be bound is left out.
func (s *Server) Heard(address string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if address != "" && s.node[address] != nil && s.faults[address] == "" {
		list = append(list, address)
	}
	for _, port := range slices.Sorted(maps.Keys(s.checks)) {
		if slices.ContainsFunc(s.host.NodePortAddrsOf(s.checks[port].Addresses), func(a netip.Addr) bool { return s.faults[netip.AddrPortFrom(a, port).String()] == "" }) {
			list = append(list, fmt.Sprintf("health check node port %d", port))
		}
	}
	return list
}

// Run listens until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer s.done.Wait()
	defer s.reconcile(ctx, nil)
	for {
		var again <-chan time.Time
		if !s.reconcile(ctx, s.wanted()) {
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-again:
		}
	}
}

// wanted returns what to listen on, and what answers there.
func (s *Server) wanted() map[string]http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]http.Handler{}
	for port, check := range s.checks {
		for _, a := range s.host.NodePortAddrsOf(check.Addresses) {
			want[netip.AddrPortFrom(a, port).String()] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				s.serveService(w, port, policy.FamilyOf(a))
			})
		}
	}
	for addr, h := range s.node {
		if addr != "" {
			want[addr] = h
		}
	}
	return want
}

// reconcile closes what is not wanted and opens what is; the rest is not
// touched. It reports whether all could be opened.
func (s *Server) reconcile(ctx context.Context, want map[string]http.Handler) bool {
	for addr, srv := range s.open {
		if _, ok := want[addr]; !ok {
			_ = srv.Close() // Serve returns all the same
			delete(s.open, addr)
		}
	}
	faults := map[string]string{}
	for addr, h := range want {
		if s.open[addr] != nil {
			continue
		}
		if err := s.listen(ctx, addr, h); err != nil && ctx.Err() == nil {
			faults[addr] = fmt.Sprintf("health check: %v; trying again every %v", err, retry)
		}
	}
	s.setFaults(faults)
	return len(faults) == 0
}

// setFaults stores faults and logs those that are new, and reports them for the service whose health check port it is.
func (s *Server) setFaults(faults map[string]string) {
	s.mu.Lock()
	old := s.faults
	s.faults = faults
	s.mu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(faults)) {
		if old[addr] != faults[addr] {
			s.log.Warn(faults[addr])
			a, _ := netip.ParseAddrPort(addr) // http_address may have a name
			s.mu.Lock()
			check, ok := s.checks[a.Port()]
			s.mu.Unlock()
			if ok {
				s.failed(check, faults[addr])
			}
		}
	}
}

func (s *Server) listen(ctx context.Context, addr string, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	conns := s.checkConns
	if s.node[addr] != nil {
		conns = s.nodeConns
	}
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second, // /metrics over a slow line
		IdleTimeout:       time.Minute,      // load balancers ask every few seconds over one connection
		MaxHeaderBytes:    16 << 10,
		ConnState:         conns.follow,
		ErrorLog:          log.New(io.Discard, "", 0), // it has only what clients did wrong
	}
	s.open[addr] = srv
	s.done.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("health check: listener stopped", "address", addr, "err", err)
		}
	})
	return nil
}
