package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Retire removes virtual servers and addresses after another mode holds everything.
// TCP connections continue until they end or time out, so call it again every few
// seconds until it returns true: then nothing is left. It leaves chains and sets
// alone, which may belong to the other mode by now; if they do not, RemoveRules
// removes them, at once.
func (b *Backend) Retire(ctx context.Context) (done bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ipvs, %s: leaving: %w", b.fam, err)
		}
	}()
	b.forget(b.record)
	b.servers = nil // no service has ended: connections go on, whatever one said
	p, err := b.takeSnapshot(ctx, &policy.State{Family: b.fam}, b.opts, b.servers)
	if err != nil {
		return false, err
	}
	var errs proxier.Failures
	b.apply(ctx, p, nil, &errs)
	b.servers = nil // the next Sync compares everything
	errs.Add(b.record.flush())
	errs.Add(releaseUDP(ctx, b.fam == policy.IPv6, p.diff.last))
	if errs.N == 0 && len(p.servers) == 0 {
		errs.Add(b.removeDevice(ctx))
	}
	return errs.N == 0 && len(p.servers) == 0, errs.Join()
}

// releaseUDP removes the UDP flows of removed servers from connection tracking, which
// would keep the rules of another mode from seeing them.
func releaseUDP(ctx context.Context, v6 bool, steps []step) error {
	var gone []netip.AddrPort
	for _, s := range steps {
		if s.op == deleteServer && s.key.Protocol == uint8(source.UDP) {
			gone = append(gone, netip.AddrPortFrom(s.key.Addr, s.key.Port))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	_, err := conntrack.Prune(ctx, v6, conntrack.Query{To: gone}, func(conntrack.Flow) conntrack.Verdict { return conntrack.Remove })
	return err
}

// RemoveRules removes the chains and sets, whose names ipvs mode shares with iptables
// mode.
func (b *Backend) RemoveRules(ctx context.Context) error {
	if err := b.kernel.Cleanup(ctx); err != nil {
		return fmt.Errorf("ipvs, %s: removing chains and sets: %w", b.fam, err)
	}
	return nil
}

// remove removes servers, addresses, the device and the record.
func (o *owner) remove(ctx context.Context) error {
	_, bound, err := addrsOf(o.device, o.fam == policy.IPv6)
	if err != nil {
		return err
	}
	var errs proxier.Failures
	errs.Add(o.removeServers(ctx, bound))
	unbound := 0
	for a := range bound {
		err := o.device.Unbind(a)
		if errs.Add(err); err == nil {
			unbound++
		}
	}
	proxier.RemovedSome(ctx, fmt.Sprintf("addresses of %s, %s", links.Own, o.fam), unbound)
	o.bound = nil
	errs.Add(o.removeDevice(ctx))
	if errs.N == 0 {
		errs.Add(o.record.clear())
	} else {
		errs.Add(o.record.flush())
	}
	return errs.Join()
}

// removeServers removes our servers. It logs others on addresses that it removes: only we
// had a reason to add servers there.
func (o *owner) removeServers(ctx context.Context, bound map[netip.Addr]struct{}) error {
	err := o.conn.Probe(ctx)
	if errors.Is(err, lvs.ErrUnsupported) { // its module was removed, with all servers
		o.disownMissing(nil)
		return nil
	}
	if err != nil {
		return err
	}
	list, err := o.list(ctx, nil)
	if err != nil {
		return err
	}
	o.disownMissing(list)
	var errs proxier.Failures
	var stay []lvs.Key
	removed := 0
	for key := range list {
		_, on := bound[key.Addr]
		switch {
		case o.record.owns(key):
			err := o.recordResult(step{op: deleteServer, key: key}, o.conn.DeleteServer(ctx, key))
			if errs.Add(err); err == nil {
				removed++
			}
		case on:
			stay = append(stay, key)
		}
	}
	proxier.RemovedSome(ctx, fmt.Sprintf("virtual servers, %s", o.fam), removed)
	o.warnForeign(stay, func(lvs.Key) string {
		return "a virtual server on an address of " + links.Own + " is not recorded as ours: it stays"
	})
	return errs.Join()
}

// disownMissing disowns servers that are not in a list of all.
func (o *owner) disownMissing(list map[lvs.Key]lvs.Server) {
	for key := range o.record.owned {
		if _, there := list[key]; !there {
			o.record.disown(key)
		}
	}
}

// Cleanup removes the virtual servers, addresses, device and record of a family from a
// host that may lack what ipvs mode needs. What stays and may have been ours is logged
// to log, which may be nil. Chains and sets have the names of iptables mode, whose
// Cleanup removes them.
func Cleanup(ctx context.Context, fam policy.Family, stateDir string, log *slog.Logger) (err error) {
	o := owner{fam: fam, log: orDiscard(log), conn: &lvs.Conn{}}
	defer func() { err = errors.Join(err, o.close()) }()
	if o.device, err = links.OpenDummy(); err != nil {
		return err
	}
	if err = o.openRecord(stateDir); err != nil {
		return err
	}
	return o.remove(ctx)
}
