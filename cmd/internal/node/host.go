package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ListAddrs returns the addresses of this host.
var ListAddrs = links.Addrs

// addressPatience is how long svcproxy tries to read addresses before it does not
// start: while they change all the time, the kernel does not list all of them. What
// an earlier run made works meanwhile; without addresses that would be replaced.
const addressPatience = 10 * time.Second

// FirstAddresses returns the addresses of this host at start.
func FirstAddresses(ctx context.Context) ([]links.Addr, error) {
	for deadline := time.Now().Add(addressPatience); ; {
		addrs, err := ListAddrs()
		if err == nil {
			return addrs, nil
		}
		err = fmt.Errorf("reading the addresses of this host: %w", err)
		if time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A HostConfig is what a Host is made of.
type HostConfig struct {
	Log      *slog.Logger
	Settings func() configs.Settings // in use
	Changed  func(*policy.Node)      // hands a node on, in the order of changes
	Eligible func(bool)              // whether load balancers may send here, as far as a cluster says
	Several  bool                    // more than one source is served
}

// A Host is this host as Resolve sees it.
type Host struct {
	HostConfig

	looking sync.Mutex // held from reading addresses until they are told; before mu

	mu           sync.Mutex
	addrs        []links.Addr
	node         *policy.Node
	member       *source.ClusterNode // what the cluster last said of this host; nil: nothing
	serviceCIDRs []netip.Prefix      // as the cluster says
}

// NewHost reads the addresses of this host.
func NewHost(ctx context.Context, c HostConfig) (*Host, error) {
	addrs, err := FirstAddresses(ctx)
	if err != nil {
		return nil, err
	}
	return &Host{HostConfig: c, addrs: addrs, node: Build(c.Settings(), addrs)}, nil
}

// Current returns this host as it is now.
func (h *Host) Current() *policy.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node
}

// LookAtAddresses takes over the addresses that this host has now, one caller at a
// time: of two lists the later one must stay.
func (h *Host) LookAtAddresses() error {
	h.looking.Lock()
	defer h.looking.Unlock()
	addrs, err := ListAddrs()
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.addrs = addrs
	h.mu.Unlock()
	h.SetNode()
	return nil
}

// SetNode tells everyone what settings and addresses make. Telling is part of
// the lock: of two changes at a time the later one must be told last.
func (h *Host) SetNode() {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := Build(InCluster(h.Settings(), h.member, h.serviceCIDRs), Primary(h.addrs, h.member))
	if n.Equal(h.node) {
		return
	}
	h.node = n
	h.Log.Info("node changed", "addresses", firstAddrs(n.Addrs), "node_port_addresses", firstAddrs(n.NodePortAddrs))
	h.Changed(n)
}

// Joined takes over what the cluster says of this host; nil: it has no node
// object of it. What it said before stays then: stale beats partial. Load
// balancers do not send to what is no node, unless it serves files too: then it
// may be a host beside the cluster, and never was one.
func (h *Host) Joined(n *source.ClusterNode) {
	h.mu.Lock()
	was := h.member
	if n != nil {
		h.member = n
	}
	h.mu.Unlock()
	h.Eligible(n == nil && was == nil && h.Several || n != nil && n.Eligible)
	h.SetNode()
}

// SetServiceCIDRs takes over the ranges that a cluster's ClusterIPs come from.
func (h *Host) SetServiceCIDRs(list []netip.Prefix) {
	h.mu.Lock()
	h.serviceCIDRs = list
	h.mu.Unlock()
	h.SetNode()
}

// RouterID returns the first IPv4 address of this host, one that serves node ports before others.
// Those of loopback alone are not asked: services may have them, on every host the same.
func (h *Host) RouterID() netip.Addr {
	n := h.Current()
	for _, a := range slices.Concat(n.NodePortAddrs, n.Addrs) {
		if a.Is4() && n.OwnsOnLink(a) {
			return a
		}
	}
	return netip.Addr{}
}

// firstAddrs names no more addresses than a line of the log should.
func firstAddrs(list []netip.Addr) string {
	const most = 10
	if len(list) <= most {
		return fmt.Sprint(list)
	}
	return fmt.Sprintf("%v and %d more", list[:most], len(list)-most)
}
