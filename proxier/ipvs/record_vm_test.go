//go:build vm

package ipvs

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A moment ends a sync after its context was asked so often whether it has ended:
// as SIGTERM does, or as SIGKILL, after which nothing of the process runs.
type moment struct {
	context.Context
	left int
	kill bool
}

type killed struct{}

func (m *moment) Err() error {
	if m.left--; m.left >= 0 {
		return nil
	}
	if m.kill {
		panic(killed{})
	}
	return context.Canceled
}

// until calls do, and reports whether the moment came before its end.
func (m *moment) until(do func(context.Context)) (cut bool) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil, killed:
			cut = m.left < 0
		default:
			panic(r)
		}
	}()
	do(m)
	return
}

// everyKind puts services with all kinds of servers into the world: two of them
// cannot be made, as another program has their servers.
func (h *host) everyKind() *policy.Delta {
	d := &policy.Delta{}
	for _, res := range []*policy.Resolved{
		h.service("web", 1, source.TCP, 0, 1), h.service("theirs", 2, source.TCP, 0), h.service("dns", 3, source.UDP, 0),
		h.service("none", 4, source.TCP), h.nodePort("node", 30081, 1), h.nodePort("other", 30082, 0),
	} {
		one := h.World.Put(res.Key, res)
		d.Services = append(d.Services, one.Services...)
		d.RefusedAddrs.Gained = append(d.RefusedAddrs.Gained, one.RefusedAddrs.Gained...)
		d.BoundAddrs.Gained = append(d.BoundAddrs.Gained, one.BoundAddrs.Gained...)
	}
	return d
}

// foreignEverywhere makes servers of another program where a service wants one, on
// an address that we bind, and elsewhere, and returns them.
func (h *host) foreignEverywhere() []string {
	vip := func(n int, port uint16) string { return netip.AddrPortFrom(h.vip(n).Addr(), port).String() }
	node := netip.AddrPortFrom(h.World.Host.NodePortAddrs[0], 30081).String()
	router := netip.AddrPortFrom(h.endpoint(2).Addr(), 443).String()
	lines := []string{
		"-A -t " + vip(1, 443) + " -s sh", "-a -t " + vip(1, 443) + " -r " + router + " -g -w 7",
		"-A -t " + vip(2, 80) + " -s sh", "-A -t " + node + " -s rr", "-A -u " + vip(4, 53) + " -s wrr",
	}
	for _, l := range lines {
		h.ipvsadm(l)
	}
	return append(lines, h.foreign()...)
}

// whole does not take a PartialError for an error.
func (h *host) whole(err error) {
	h.Helper()
	if _, ok := err.(*proxier.PartialError); !ok {
		h.Fatalf("error %v, want two unserved servers", err)
	}
}

// forget is a restart that finds the tools of iptables where they were.
func (h *host) forget() {
	h.Helper()
	was := h.Backend
	was.device.Close()
	h.Must(was.conn.Close())
	h.Backend = &Backend{owner: owner{fam: h.Family, log: was.log, conn: &lvs.Conn{}}, lookout: lookout{v6: was.v6, timeouts: was.timeouts}, opts: h.opts, kernel: was.kernel, rules: layout.NewIPVSRules(h.Family)}
	h.Backend.unsupported = layout.NewUnsupported(was.kernel.Probe, h.Backend.rules)
	h.Must(h.Backend.openRecord(h.opts.StateDir))
	var err error
	h.Backend.device, err = links.OpenDummy()
	h.Must(err)
}

// recordedMissing returns the servers that are recorded as ours, and are not there.
func (h *host) recordedMissing() (keys []lvs.Key) {
	for key := range h.Backend.record.owned {
		there, err := h.Backend.conn.Has(h.Context(), key)
		if h.Must(err); !there {
			keys = append(keys, key)
		}
	}
	return keys
}

// Whenever a process ends, also in the middle of a first sync, of a removal, of
// leaving the mode or of cleanup, cleanup restores what was there before, and a daemon that
// starts again gets everything done. Some moments stand for all, which have their
// turn with SVCPROXY_SOAK=1.
func TestCleanupAfterAProcessWasCutOff(t *testing.T) {
	h := newHost(t, policy.IPv4)
	h.opts.DrainTimeout = 0
	theirs := h.foreignEverywhere()
	all := h.everyKind()
	h.Restart()
	h.whole(h.Backend.Sync(t.Context(), h.World.State, nil)) // chains and sets are there
	full := h.World.State
	none := *full
	none.Services, none.BoundAddrs, none.RefusedAddrs = nil, nil, nil
	removal := &policy.Delta{}
	for _, s := range all.Services {
		removal.Services = append(removal.Services, policy.ServiceChange{Old: s.New})
	}
	removal.RefusedAddrs.Lost, removal.BoundAddrs.Lost = all.RefusedAddrs.Gained, all.BoundAddrs.Gained
	step := 5
	if os.Getenv("SVCPROXY_SOAK") == "1" {
		step = 1
	}
	for phase, tt := range []struct {
		what   string
		before func()
		do     func(context.Context)
	}{
		{"first sync", func() { h.Must(h.Backend.remove(t.Context())) }, func(ctx context.Context) { h.Backend.Sync(ctx, full, nil) }},
		{"first services", func() { h.Must(h.Backend.Sync(t.Context(), &none, nil)) }, func(ctx context.Context) { h.Backend.Sync(ctx, full, all) }},
		{"removal", func() { h.whole(h.Backend.Sync(t.Context(), full, nil)) }, func(ctx context.Context) { h.Backend.Sync(ctx, &none, removal) }},
		{"cleanup", func() { h.whole(h.Backend.Sync(t.Context(), full, nil)) }, func(ctx context.Context) { h.Backend.remove(ctx) }},
		{"change of mode", func() { h.whole(h.Backend.Sync(t.Context(), full, nil)) }, func(ctx context.Context) { h.Backend.Retire(ctx) }},
	} {
		n := 0
		for cut := true; cut; n++ {
			tt.before()
			at := phase%step + n*step
			m := &moment{t.Context(), 2 * at, at%2 == 0} // a message asks twice
			cut = m.until(tt.do)
			h.forget()
			if missing := h.recordedMissing(); !m.kill && len(missing) > 1 { // one may have been on its way
				h.Errorf("recorded and not there: %v", missing)
			}
			if n%5 == 0 { // some go on
				h.whole(h.Backend.Sync(t.Context(), full, nil))
				h.settled()
			}
			h.Must(h.Backend.remove(t.Context()))
			h.want(theirs...)
			if links := run(h, "ip", "-o", "link"); strings.Contains(links, "svcproxy0") || len(h.files()) > 0 {
				h.Errorf("left: %v\n%s", h.files(), links)
			}
			if h.Failed() {
				h.Fatalf("%s, cut off at moment %d", tt.what, at)
			}
		}
		h.Logf("%s: cut off at %d moments", tt.what, n-1)
	}
	h.cleanUpAndWant(theirs)
}

// A server that another program has where a service wants one stays as it is, is
// named, and delays nothing else; so does one on an address that we bind.
func TestForeignServersAreLeftAlone(t *testing.T) {
	everywhere(t, func(h *host) {
		var log bytes.Buffer
		h.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
		h.Restart()
		h.Sync(nil)
		theirs := h.foreignEverywhere()
		delta := h.everyKind()
		for _, how := range []struct {
			what  string
			delta *policy.Delta
		}{{"delta", delta}, {"look", nil}} {
			err := h.Backend.Sync(h.Context(), h.World.State, how.delta)
			for _, want := range []string{"default/theirs", h.vip(2).String(), "default/node", ":30081"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					h.Errorf("%s: error %v does not name %s", how.what, err, want)
				}
			}
			h.whole(err)
			for _, l := range theirs {
				if !slices.Contains(h.servers(), l) {
					h.Errorf("%s: %q is not as it was: %q", how.what, l, h.servers())
				}
			}
		}
		h.wantServed(1, 2, 3) // daemons of the host do not answer at 2, and we do not refuse
		h.settled()
		if n := strings.Count(log.String(), "belongs to another program"); n != 2 {
			h.Errorf("named %d times, want each of 2 once:\n%s", n, log.String())
		}
		h.cleanUpAndWant(theirs)
	})
}

// A server is no longer ours once a look has missed it: the next of its name is not.
func TestServersRemovedByOthersAreForgotten(t *testing.T) {
	everywhere(t, func(h *host) {
		web, node := h.service("web", 1, source.TCP, 0), h.nodePort("node", 30080, 0)
		h.Put(web)
		h.Put(node)
		h.ipvsadm("-C")
		h.World.Put(web.Key, nil)
		h.Sync(nil)
		theirs := []string{"-A -t " + h.vip(1).String() + " -s lc"}
		h.ipvsadm(theirs[0])
		h.Put(h.service("other", 3, source.TCP, 0))
		h.Sync(nil)
		h.wantState(theirs...)
		h.cleanUpAndWant(theirs)
	})
}

// So it is where the service goes in the sync that would have made it again.
func TestMissedServersOfServicesThatGoAreForgotten(t *testing.T) {
	h := newHost(t, policy.IPv4)
	web := h.service("web", 1, source.TCP, 0)
	h.Put(web)
	h.ipvsadm("-C")
	if differs, err := h.Backend.Look(t.Context()); err != nil || !differs {
		t.Fatalf("the look gave %v, %v", differs, err)
	}
	h.Remove(web)
	theirs := []string{"-A -t " + h.vip(1).String() + " -s lc"}
	h.ipvsadm(theirs[0])
	h.Sync(nil)
	h.cleanUpAndWant(theirs)
}

// Nor is it where another program makes one of its name before that sync: as it
// is, it stays, and it is named where a service wants its own.
func TestServersMadeAfterALookMissedOursAreForeign(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(1)
		for _, delta := range []*policy.Delta{{}, nil} {
			web, left := h.service("web", 1, source.TCP, 0), h.service("left", 2, source.TCP, 0)
			h.Put(web)
			h.Put(left)
			h.mustDial(h.vip(2))
			h.Remove(left)
			h.ipvsadm("-C")
			if !h.Look() {
				h.Fatal("the look found nothing")
			}
			theirs := []string{"-A -t " + h.vip(1).String() + " -s lc", "-A -t " + h.vip(2).String() + " -s lc"}
			for _, l := range theirs {
				h.ipvsadm(l)
			}
			h.Look() // sees theirs
			h.unserved(delta, 1)
			h.want(theirs...)
			if h.settled(); h.Failed() {
				h.Fatalf("delta %v", delta)
			}
			h.Remove(web)
			h.want(theirs...)
			h.cleanUpAndWant(theirs)
			h.ipvsadm("-C")
		}
	})
}

// An endpoint that the kernel takes for no host costs itself, and is named: no sync
// fails, no look differs.
func TestEndpointsThatAreNoHosts(t *testing.T) {
	everywhere(t, func(h *host) {
		bad := netip.MustParseAddrPort(map[policy.Family]string{policy.IPv4: "255.255.255.255:8080", policy.IPv6: "[ff02::1]:8080"}[h.Family])
		res := h.service("web", 1, source.TCP, 0)
		pool := res.Pools[0]
		pool.Targets = append(slices.Clone(pool.Targets), policy.NewTarget(bad, 1))
		h.Sync(nil)
		for _, delta := range []*policy.Delta{h.World.Put(res.Key, res), nil} {
			h.unserved(delta, 1)
			h.want("-A -t "+h.vip(1).String()+" -s wrr", h.endpointLine(1, 0))
			h.wantServed(1)
			if h.Look() {
				h.Error("something differs")
			}
		}
		if err := h.Backend.refused.unserved().Error(); !strings.Contains(err, bad.String()) || !strings.Contains(err, "default/web") {
			h.Errorf("%v does not name %v of default/web", err, bad)
		}
		h.Put(h.service("web", 1, source.TCP, 0, 1))
		h.wantState()
		h.settled()
		h.cleanUpAndWant(nil)
	})
}

// The record of another boot, or none, makes nothing ours. What is there goes on
// serving, and is named; when it was removed the services get their own.
func TestRecordIsLost(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(1)
		h.Put(h.service("web", 1, source.TCP, 0))
		theirs := h.servers()
		text, err := os.ReadFile(h.Backend.record.file.Path())
		h.Must(err)
		for _, instead := range [][]byte{bytes.Replace(text, []byte("boot "), []byte("boot 0"), 1), []byte("{"), nil} {
			if bytes.Equal(instead, text) {
				h.Fatalf("the record names no boot: %s", text)
			}
			h.Must(os.WriteFile(h.Backend.record.file.Path(), instead, 0o600))
			h.Restart()
			h.unserved(nil, 1)
			h.wantServed(1)
			if _, n := h.mustDial(h.vip(1)); n != 0 {
				h.Errorf("endpoint %d answers", n)
			}
			var log bytes.Buffer
			h.Must(Cleanup(h.Context(), h.Family, h.opts.StateDir, slog.New(slog.NewTextHandler(&log, nil))))
			h.want(theirs...)
			if remove := "ipvsadm -D -t " + h.vip(1).String(); strings.Count(log.String(), remove) != 1 {
				h.Errorf("cleanup does not name what stays: %q", log.String())
			}
		}
		h.ipvsadm("-D -t " + h.vip(1).String())
		h.Sync(nil)
		h.wantState()
		h.settled()
		h.cleanUpAndWant(nil)
	})
}

// A disk that is full costs servers that are new, and no change of the others.
func TestRecordCannotBeWritten(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Put(h.service("web", 1, source.TCP, 0))
		path := h.Backend.record.file.Path()
		h.Must(os.Rename(path, path+".moved"))
		h.Must(os.Mkdir(path, 0o700)) // nothing can be put in its place
		delta := h.World.Put(h.service("web", 1, source.TCP, 0, 1).Key, h.service("web", 1, source.TCP, 0, 1))
		h.Sync(delta)
		second := h.service("second", 2, source.TCP, 0)
		for _, delta := range []*policy.Delta{h.World.Put(second.Key, second), nil} {
			if err := h.Backend.Sync(h.Context(), h.World.State, delta); err == nil {
				h.Error("no error")
			}
			h.want("-A -t "+h.vip(1).String()+" -s wrr", h.endpointLine(1, 0), h.endpointLine(1, 1))
			h.wantServed(1)
		}
		h.Must(os.Remove(path))
		h.Sync(nil)
		h.wantState()
		h.settled()
		h.Must(os.Remove(path + ".moved"))
		h.cleanUpAndWant(nil)
	})
}

func (h *host) endpointLine(vip, endpoint int) string {
	return strings.Replace(h.draining(vip, endpoint), "-w 0", "-w 1", 1)
}
