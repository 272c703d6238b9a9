package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// An owner has what is ours in IPVS, and on our device. It sends what changes there, and
// records which virtual servers are ours.
type owner struct {
	fam policy.Family
	log *slog.Logger

	conn    *lvs.Conn
	device  *links.Dummy
	bound   map[netip.Addr]struct{} // addresses of our device, after the last Sync
	record  *record
	unsent  map[lvs.Key]struct{} // that the running Sync has not added yet
	refused refused
	foreign map[lvs.Key]struct{} // those of refused that were logged

	refusals int       // of the kernel, after the last Sync
	retryDue time.Time // when to retry some of these; zero: there are none
}

func orDiscard(log *slog.Logger) *slog.Logger { return cmp.Or(log, slog.New(slog.DiscardHandler)) }

func (o *owner) openRecord(dir string) error {
	here, err := bootrecord.Here()
	if err != nil {
		return err
	}
	var damaged int
	if o.record, damaged, err = readRecord(dir, o.fam, here); err != nil {
		return err
	}
	if damaged > 0 {
		o.log.Warn("the record of our virtual servers is damaged; leaving unnamed ones alone", "file", o.record.file.Path(), "damaged_lines", damaged)
	}
	return nil
}

// close closes the sockets.
func (o *owner) close() error {
	if o.device != nil {
		o.device.Close()
	}
	if o.conn == nil {
		return nil
	}
	return o.conn.Close()
}

// list returns the virtual servers of our family. It includes every recorded one,
// whatever other processes change meanwhile, or it would count as removed; and every
// desired one, or a foreign one would be recorded as ours until adding it fails: if we
// were killed before that, the next run would remove it.
func (o *owner) list(ctx context.Context, wanted map[lvs.Key]frontendPair) (map[lvs.Key]lvs.Server, error) {
	known := maps.Clone(o.record.owned)
	for key := range wanted {
		known[key] = struct{}{}
	}
	return o.conn.Servers(ctx, o.fam == policy.IPv6, maps.Keys(known))
}

// addrsOf reports whether our device exists, and its addresses.
func addrsOf(device *links.Dummy, v6 bool) (there bool, addrs map[netip.Addr]struct{}, err error) {
	if there, err = device.Find(); err != nil {
		return false, nil, err
	}
	list, err := device.Addrs(v6)
	if err != nil {
		return false, nil, err
	}
	addrs = make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		addrs[a] = struct{}{}
	}
	return there, addrs, nil
}

func (o *owner) bind(ctx context.Context, addrs []netip.Addr, errs *proxier.Failures) {
	changeAddrs(ctx, addrs, o.device.Bind, func(a netip.Addr) { o.bound[a] = struct{}{} }, errs)
}

func (o *owner) unbind(ctx context.Context, addrs []netip.Addr, errs *proxier.Failures) {
	changeAddrs(ctx, addrs, o.device.Unbind, func(a netip.Addr) { delete(o.bound, a) }, errs)
}

// changeAddrs changes addresses of our device, and calls done with each that succeeded.
func changeAddrs(ctx context.Context, addrs []netip.Addr, change func(netip.Addr) error, done func(netip.Addr), errs *proxier.Failures) {
	for _, a := range addrs {
		if ctx.Err() != nil {
			errs.Add(ctx.Err())
			return
		}
		err := change(a)
		if errs.Add(err); err == nil {
			done(a)
		}
		proxier.Progressed(ctx)
	}
}

// repairAddrs makes our device have the addresses of members.
func (o *owner) repairAddrs(ctx context.Context, members map[netip.Addr]struct{}, errs *proxier.Failures) {
	there, have, err := addrsOf(o.device, o.fam == policy.IPv6)
	if err == nil && !there {
		err = o.device.Make()
	}
	if err != nil {
		errs.Add(err)
		return
	}
	o.bound = have
	missing, extra := addrDifference(have, members)
	o.unbind(ctx, extra, errs)
	o.bind(ctx, missing, errs)
}

// removeDevice removes our device, unless a family has addresses on it.
func (o *owner) removeDevice(ctx context.Context) error {
	there, err := o.device.Find()
	if err != nil || !there {
		return err
	}
	for _, v6 := range []bool{false, true} {
		if left, err := o.device.Addrs(v6); err != nil || len(left) > 0 {
			return err
		}
	}
	if err := o.device.Remove(); err != nil {
		return err
	}
	proxier.Removed(ctx, "device "+links.Own)
	return nil
}

// recordPlanned records what is about to be done: which servers will be ours, and which
// destinations drain. A server that cannot be recorded is not added; everything else
// continues.
func (o *owner) recordPlanned(claimed []lvs.Key, d *difference, servers map[lvs.Key]*server, errs *proxier.Failures) {
	o.unsent = map[lvs.Key]struct{}{}
	for _, s := range d.first {
		if s.op == addServer {
			o.unsent[s.key] = struct{}{}
		}
	}
	for _, key := range claimed {
		o.record.own(key)
	}
	for _, c := range d.drained {
		o.record.drained(c)
	}
	err := o.record.flush()
	if err == nil {
		return
	}
	errs.Add(err)
	for _, key := range claimed {
		o.record.disown(key)
		delete(servers, key)
		o.refused[key] = refusal{err: err}
	}
}

// disownUnsent gives up servers that a Sync did not get to add: by the next one, another
// program may have added them.
func (o *owner) disownUnsent() {
	for key := range o.unsent {
		o.record.disown(key)
	}
	o.unsent = nil
}

// runSteps sends steps that lead to servers, which it corrects if the kernel refuses
// one. It skips steps of servers that could not be added.
func (o *owner) runSteps(ctx context.Context, steps []step, servers map[lvs.Key]*server, errs *proxier.Failures) {
	for _, s := range steps {
		if s.op != deleteServer && servers[s.key] == nil {
			continue
		}
		if ctx.Err() != nil {
			errs.Add(ctx.Err())
			return
		}
		delete(o.unsent, s.key)
		if s.op == addDest {
			s.srv = servers[s.key]
		}
		err := s.do(ctx, o.conn)
		if err != nil {
			s.undo(servers)
		}
		errs.Add(o.recordResult(s, err))
		proxier.Progressed(ctx)
	}
}

// recordResult records the result of a step, and returns its error if a retry may
// succeed. A server is ours until it is known to be removed, or never to have been added.
func (o *owner) recordResult(s step, err error) error {
	switch {
	case s.op == deleteServer && err == nil:
		o.record.disown(s.key)
	case s.op == addServer && errors.Is(err, lvs.ErrExist): // another program added it first
		o.record.disown(s.key)
		o.refused[s.key] = foreignServer(s.srv.name, s.key)
		return o.record.flush() // at once: it must never be removed as if it were ours
	case errors.Is(err, lvs.ErrNoServer): // the next one that another program adds there is not ours
		o.record.disown(s.key)
	case errors.Is(err, lvs.ErrRefused): // other servers, and other destinations of this one, are unaffected
		if s.op == addServer {
			o.record.disown(s.key)
		}
		o.refused[s.key] = refusal{err: err}
		return nil
	}
	return err
}

// refused has the desired servers that are missing or incomplete, with the reason.
// Retrying at once is useless.
type refused map[lvs.Key]refusal

type refusal struct {
	err     error
	foreign bool // another program has the server
}

// unserved returns the error for them; nil if there are none.
func (r refused) unserved() *proxier.PartialError {
	if len(r) == 0 {
		return nil
	}
	var errs proxier.Failures
	for _, key := range slices.SortedFunc(maps.Keys(r), compareKeys) {
		errs.Add(r[key].err)
	}
	return &proxier.PartialError{N: len(r), Err: errs.Join()}
}

// missingEntries returns those that do not exist at all. Foreign ones do: IPVS handles
// their packets, and daemons of the host do not see them. If our record was lost we made
// them, and they serve while the log says what to do.
func (r refused) missingEntries(servers map[lvs.Key]*server) map[ipset.Entry]bool {
	out := make(map[ipset.Entry]bool, len(r))
	for key, why := range r {
		if servers[key] == nil && !why.foreign {
			out[entryOf(key)] = true
		}
	}
	return out
}

// foreignServer is the refusal of a server that exists and is not recorded. It is left alone.
func foreignServer(name policy.ServicePortName, key lvs.Key) refusal {
	return refusal{fmt.Errorf("service %s: virtual server %v belongs to another program: it is left alone", name, key), true}
}

// maxDue is how many servers one sync checks for their drains, a message each:
// changes wait for no more than these.
const maxDue = 64

// retryRefused is how long after the kernel refused a server, for a missing scheduler
// say, it is tried again. Each try makes the kernel run modprobe.
const retryRefused = 30 * time.Second

// countRefused sets when to retry after a Sync that succeeded. If a server was accepted after all, the
// others are tried at once.
func (o *owner) countRefused(now time.Time) {
	n := 0
	for _, why := range o.refused {
		if !why.foreign {
			n++
		}
	}
	switch {
	case n == 0:
		o.retryDue = time.Time{}
	case n < o.refusals:
		o.retryDue = now
	case !now.Before(o.retryDue):
		o.retryDue = now.Add(retryRefused)
	}
	o.refusals = n
}

// addRetries adds some of the servers that the kernel refused to keys, if they are due.
func (o *owner) addRetries(now time.Time, keys map[lvs.Key]struct{}) {
	if o.retryDue.IsZero() || now.Before(o.retryDue) {
		return
	}
	left := maxDue
	for key, why := range o.refused { // in random order, so others the next time
		if why.foreign {
			continue
		}
		keys[key] = struct{}{}
		if left--; left == 0 {
			return
		}
	}
}

// maxLogged is how many foreign servers are logged at once. If the state directory was
// lost there are as many as services.
const maxLogged = 50

// logForeign logs servers that were not foreign, or not wanted, before.
func (o *owner) logForeign(c *frontendPairs) {
	known := o.foreign
	o.foreign = make(map[lvs.Key]struct{})
	var found []lvs.Key
	for key, why := range o.refused {
		if !why.foreign {
			continue
		}
		o.foreign[key] = struct{}{}
		if _, was := known[key]; !was {
			found = append(found, key)
		}
	}
	o.warnForeign(found, func(key lvs.Key) string {
		return fmt.Sprintf("a virtual server that service %s wants belongs to another program: it is left alone", c.by[key].frontend().ServicePort)
	})
}

// warnForeign logs the same of servers, in order, and how to remove them.
func (o *owner) warnForeign(keys []lvs.Key, what func(lvs.Key) string) {
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys[:min(len(keys), maxLogged)] {
		o.log.Warn(what(key), "family", o.fam, "virtual_server", key, "to_remove", "ipvsadm -D "+key.String())
	}
	if more := len(keys) - maxLogged; more > 0 {
		o.log.Warn("there are more such virtual servers: was the state directory lost?", "family", o.fam, "virtual_servers", more)
	}
}
