package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"svcproxy/cmd/internal/node"
	"svcproxy/netutil/links"
)

// listAddrs returns the addresses of this host.
var listAddrs = links.Addrs

// addressPatience is how long svcproxy tries to read addresses before it does not
// start: while they change all the time, the kernel does not list all of them. What
// an earlier run made works meanwhile; without addresses that would be replaced.
const addressPatience = 10 * time.Second

// firstAddresses returns the addresses of this host at start.
func firstAddresses(ctx context.Context) ([]links.Addr, error) {
	for deadline := time.Now().Add(addressPatience); ; {
		addrs, err := listAddrs()
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

// lookAtAddresses takes over the addresses that this host has now, one caller at a
// time: of two lists the later one must stay.
func (d *daemon) lookAtAddresses() error {
	d.looking.Lock()
	defer d.looking.Unlock()
	addrs, err := listAddrs()
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.addrs = addrs
	d.mu.Unlock()
	d.setNode()
	return nil
}

// setNode tells everyone what settings and addresses make. Telling is part of
// the lock: of two changes at a time the later one must be told last.
func (d *daemon) setNode() {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := node.Build(node.InCluster(d.settings, d.member, d.serviceCIDRs, d.addrs), d.addrs)
	if n.Equal(d.node) {
		return
	}
	d.node = n
	d.log.Info("node changed", "addresses", firstAddrs(n.Addrs), "node_port_addresses", firstAddrs(n.NodePortAddrs))
	d.server.SetAddrs(n.NodePortAddrs)
	d.loop.SetNode(n)
	d.doubt()
}

// firstAddrs names no more addresses than a line of the log should.
func firstAddrs(list []netip.Addr) string {
	const most = 10
	if len(list) <= most {
		return fmt.Sprint(list)
	}
	return fmt.Sprintf("%v and %d more", list[:most], len(list)-most)
}
