package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Text returns the virtual servers of a State as ipvsadm-save prints them, each
// with its destinations and their thresholds, which that leaves out, and the addresses of our device as ip takes them, in order of
// address, protocol and port.
func Text(st *policy.State, scheduler string) []string {
	c := newFrontendPairs(st)
	pools := map[*policy.Pool][]lvs.Destination{}
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(c.by), compareKeys) {
		s := c.server(key, scheduler, pools)
		lines = append(lines, serverText(s.Server))
		for _, d := range s.dests {
			lines = append(lines, destText(key, d))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(st.BoundAddrs), netip.Addr.Compare) {
		lines = append(lines, fmt.Sprintf("ip address add %s/%d dev %s", a, a.BitLen(), links.Own))
	}
	return lines
}

// Follow returns a function that applies deltas to the virtual servers of a State, each with the State that it leads
// to, and returns how many messages to IPVS that takes. It asks no kernel, so that tests can measure it. What
// leaves drains.
func Follow(st *policy.State, opts Options) func(*policy.State, *policy.Delta) (messages int) {
	h := holdings{servers: map[lvs.Key]*server{}, claims: newFrontendPairs(st), orphans: map[netip.Addr]int{}}
	apply := func(keys map[lvs.Key]struct{}, st *policy.State) int {
		d := &difference{now: time.Now(), timeout: opts.DrainTimeout}
		h.compare(d, slices.SortedFunc(maps.Keys(keys), compareKeys), opts.Scheduler, st)
		return len(d.first) + len(d.last)
	}
	all := map[lvs.Key]struct{}{}
	for key := range h.claims.by {
		all[key] = struct{}{}
	}
	apply(all, st)
	return func(st *policy.State, d *policy.Delta) int { return apply(h.claims.update(d), st) }
}

// serverText returns a server as ipvsadm takes it.
func serverText(s lvs.Server) string {
	text := fmt.Sprintf("-A %s -s %s", s.Key, s.Scheduler)
	if s.Persistence > 0 {
		text += fmt.Sprintf(" -p %d", s.Persistence)
	}
	if s.OnePacket {
		text += " -o"
	}
	return text + flagText(s)
}

// flagText returns the flags of a scheduler as ipvsadm takes them: those of sh and mh have names.
func flagText(s lvs.Server) string {
	var words []string
	for i, name := range []string{"fallback", "port", ""} {
		if s.Flags&(lvs.FallBack<<i) == 0 {
			continue
		}
		word := fmt.Sprintf("flag-%d", i+1)
		if (s.Scheduler == "sh" || s.Scheduler == "mh") && name != "" {
			word = s.Scheduler + "-" + name
		}
		words = append(words, word)
	}
	if words == nil {
		return ""
	}
	return " -b " + strings.Join(words, ",")
}

func destText(k lvs.Key, d lvs.Destination) string {
	return fmt.Sprintf("-a %s -r %s %s%s", k, d.AddrPort, d.Forwarding.Text(d.Weight), d.Limits.Text())
}

// Count implements proxier.Counter. It reads servers one by one, on a socket of its own.
// What rules balance, and not IPVS, is not counted: local sources under policy local.
func (o *owner) Count(ctx context.Context, addrs []proxier.FrontendAddr, each func(proxier.Pair, proxier.Count)) error {
	conn, err := lvs.Dial(ctx)
	if err != nil {
		return fmt.Errorf("ipvs, %s: counting: %w", o.fam, err)
	}
	for _, p := range addrs {
		if err = countServer(ctx, conn, p, each); err != nil {
			err = fmt.Errorf("ipvs, %s: counting: %w", o.fam, err)
			break
		}
	}
	return errors.Join(err, conn.Close())
}

func countServer(ctx context.Context, conn *lvs.Conn, p proxier.FrontendAddr, each func(proxier.Pair, proxier.Count)) error {
	list, err := conn.Counters(ctx, lvs.Key{Addr: p.Addr(), Protocol: uint8(p.Protocol), Port: p.Port()})
	for _, c := range list {
		active := uint64(c.Active)
		if p.Protocol == source.UDP { // all of them are inactive to IPVS
			active += uint64(c.Inactive)
		}
		each(proxier.Pair{FrontendAddr: p, Target: c.AddrPort}, proxier.Count{
			Active: active, Connections: c.Connections, Packets: c.Packets, Bytes: c.Bytes,
		})
	}
	return err
}
