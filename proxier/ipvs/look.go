package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Look implements proxier.Backend. It reads servers one by one, on sockets of its own,
// and notes those that differ, which the next Sync repairs. It does not compare foreign
// servers, and ignores what Watch has reported, whose caller requests a sync.
func (b *Backend) Look(ctx context.Context) (bool, error) {
	b.lookMu.Lock()
	defer b.lookMu.Unlock()
	differs, err := b.lookAtAll(ctx)
	damaged, rulesErr := b.kernel.Look(ctx)
	if err = errors.Join(err, rulesErr); err != nil {
		return false, fmt.Errorf("ipvs, %s: looking at the kernel: %w", b.fam, err)
	}
	return differs && !b.mirror.reported() || damaged && !b.kernel.Reported(), nil
}

func (b *Backend) lookAtAll(ctx context.Context) (differs bool, err error) {
	servers, foreign, known := b.mirror.beginLook()
	if !known {
		return false, nil
	}
	defer func() { differs = b.mirror.endLook() && err == nil }()
	conn, err := lvs.Dial(ctx)
	if err != nil {
		return false, err
	}
	err = errors.Join(b.lookAtServers(ctx, conn, servers, foreign), b.lookAtTimeouts(ctx, conn), conn.Close())
	if err != nil {
		return false, err
	}
	return false, b.lookAtAddrs()
}

// lookAtServers compares servers with the mirror. It skips those that a Sync changes meanwhile.
func (b *Backend) lookAtServers(ctx context.Context, conn *lvs.Conn, servers, foreign []lvs.Key) error {
	list, err := conn.Servers(ctx, b.fam == policy.IPv6, slices.Values(slices.Concat(servers, foreign)))
	if err != nil {
		return err
	}
	for _, key := range servers {
		if b.mirror.changedSince(key) {
			continue
		}
		s, there := list[key]
		if !there {
			b.mirror.compare(key, nil)
			continue
		}
		dests, err := conn.Destinations(ctx, key)
		if err != nil {
			return err
		}
		b.mirror.compare(key, serverFrom(lvs.Listing{Server: s, Destinations: dests}))
		proxier.Progressed(ctx)
	}
	for _, key := range foreign {
		if _, there := list[key]; !there {
			b.mirror.foreignGone(key)
		}
	}
	return nil
}

func (b *Backend) lookAtTimeouts(ctx context.Context, conn *lvs.Conn) error {
	differ, err := b.timeoutsDiffer(ctx, conn)
	if differ {
		b.mirror.timeoutsDiffer()
	}
	return err
}

// lookAtAddrs compares the addresses of our device; if it does not exist, there are none.
func (b *Backend) lookAtAddrs() error {
	device, err := links.OpenDummy()
	if err != nil {
		return err
	}
	defer device.Close()
	_, have, err := addrsOf(device, b.fam)
	if err != nil {
		return err
	}
	b.mirror.compareAddrs(have)
	return nil
}

// addrsOf reports whether our device exists, and its addresses.
func addrsOf(device *links.Dummy, fam policy.Family) (there bool, addrs map[netip.Addr]struct{}, err error) {
	if there, err = device.Find(); err != nil {
		return false, nil, err
	}
	list, err := device.Addrs(fam == policy.IPv6)
	if err != nil {
		return false, nil, err
	}
	addrs = make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		addrs[a] = struct{}{}
	}
	return there, addrs, nil
}
