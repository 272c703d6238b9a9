//go:build netns

package iptables_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// harms are what others do to our rules and sets.
var harms = []struct {
	name string
	harm func(h *host)
}{
	{"nat flushed", func(h *host) { h.iptables("-t nat -F"); h.foreignNAT() }},
	{"nat flushed, chains deleted", func(h *host) { h.iptables("-t nat -F"); h.iptables("-t nat -X"); h.foreignNAT() }},
	{"our filter chain flushed", func(h *host) { h.iptables("-F SVCP-FILTER") }},
	{"rule deleted", func(h *host) { h.iptables("-t nat -D SVCP-SERVICES 1") }},
	{"rule added", func(h *host) { h.iptables("-t nat -A SVCP-MARK-MASQ -j ACCEPT") }},
	{"rule replaced", func(h *host) { h.iptables("-t nat -R SVCP-MARK-MASQ 1 -j MARK --set-xmark 0x1/0x1") }},
	{"jump deleted", func(h *host) { h.iptables("-D FORWARD -j SVCP-FORWARD") }},
	{"jump twice", func(h *host) { h.iptables("-t nat -A OUTPUT -j SVCP-SERVICES") }},
	{"jumps in the wrong order", func(h *host) {
		h.iptables("-D FORWARD -j SVCP-FORWARD")
		h.iptables("-I FORWARD -j SVCP-FORWARD")
	}},
	{"chain of an earlier run", func(h *host) {
		h.iptables("-N SVCP-OLD")
		h.iptables("-A SVCP-OLD -j ACCEPT")
		h.iptables("-I INPUT -j SVCP-OLD")
	}},
	{"set flushed", func(h *host) { run(h, "ipset", "flush", h.set("SVCP-VIPS")) }},
	{"set of an earlier run", func(h *host) { run(h, "ipset", "create", h.set("SVCP-OLD"), "hash:net") }},
	{"set without a family in its name", func(h *host) { run(h, "ipset", "create", "SVCP-STRAY", "hash:ip", "family", h.inet()) }},
	{"member too many", func(h *host) {
		run(h, "ipset", "add", h.set("SVCP-REJECT"), backendtest.Addr(h.Family, "external", 77).String()+",tcp:1")
	}},
	{"set destroyed", func(h *host) {
		h.iptables("-F SVCP-FILTER")
		h.iptables("-F SVCP-FORWARD")
		destroy(h, h.set("SVCP-DROP"))
	}},
}

// set returns the name of a set of the family.
func (h *host) set(name string) string {
	if h.Family == policy.IPv6 {
		return name + "-6"
	}
	return name + "-4"
}

// inet returns what ipset calls the family.
func (h *host) inet() string {
	if h.Family == policy.IPv6 {
		return "inet6"
	}
	return "inet"
}

// destroy destroys a set as soon as nf_tables has let go of it.
func destroy(h *host, set string) {
	h.Helper()
	var fault string
	pace.UntilOr(h, func() bool {
		fault = run(h, "sh", "-c", "ipset destroy "+set+" 2>&1 || true")
		return fault == ""
	}, func() string { return fault })
}

// watch starts a watch that sends its events.
func (h *host) watch() <-chan proxier.ForeignChange {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan proxier.ForeignChange, 100), make(chan error, 1)
	go netnstest.Here(h, func() { ended <- h.Backend.Watch(ctx, func(e proxier.ForeignChange) { events <- e }) })()
	h.Cleanup(func() {
		cancel()
		<-ended
	})
	return events
}

// The table that keeps connections while all rules are flushed comes back, too.
func TestLookKeepsOn(t *testing.T) {
	everywhere(t, func(h *host) {
		table := h.set("SVCP-KEEP")
		h.Fill(seeded(3), 3)
		h.Sync(nil)
		run(h, "nft", "delete", "table", "inet", table)
		if h.Look() {
			h.Error("no rule differs, but a look says so")
		}
		if tables := run(h, "nft", "list", "tables"); !strings.Contains(tables, "table inet "+table) {
			h.Errorf("after a look there are only\n%s", tables)
		}
	})
}

// Who flushes our rules is seen: at once where nf_tables tells, else within some
// seconds. What we write ourselves is not told of, nor what others do to their own.
func TestWatchSeesFlush(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		pick := seeded(15)
		h.Fill(pick, 30)
		h.Sync(nil)
		for range 5 {
			h.Sync(h.Change(pick, 30))
			h.iptables("-A FOREIGN -j ACCEPT")
		}
		for _, flush := range []string{"-t nat -F", "-F", "-t nat -F; -t nat -X"} {
			select {
			case e := <-events:
				h.Errorf("an event although nobody touched our rules: %+v", e)
			case <-time.After(1200 * time.Millisecond):
			}
			for args := range strings.SplitSeq(flush, "; ") {
				h.iptables(args)
			}
			select {
			case e := <-events:
				if h.variant == "nft" && (e.PID == 0 || e.Process != h.tool("")) && !e.Lost {
					h.Errorf("%s: who did that: got %+v", flush, e)
				}
			case <-time.After(pace.Scale(30 * time.Second)):
				h.Fatalf("%s: nobody says so", flush)
			}
			h.foreignNAT()
			h.Sync(&policy.Delta{})
			h.Settled(flush)
		}
	})
}

// What a watch has reported is repaired when its caller says so, later if another
// process breaks it again and again: a look does not bring that forward, and the
// queries of the legacy variant do not report it again.
func TestLookDoesNotHastenReportedRepairs(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		h.Fill(seeded(16), 20)
		h.Sync(nil)
		h.iptables("-t nat -F")
		select {
		case <-events:
		case <-time.After(pace.Scale(30 * time.Second)):
			h.Fatal("nobody says that the rules were flushed")
		}
		if h.Look() {
			h.Error("a look finds what the watch has told of")
		}
		if h.variant == "legacy" && h.Family == policy.IPv4 {
			select {
			case <-events:
				h.Error("told again while the repair waits")
			case <-time.After(4 * time.Second): // the next question comes after 2 s or so
			}
		}
		h.foreignNAT()
		h.Sync(&policy.Delta{})
		h.Settled("repair")
		run(h, "ipset", "flush", h.set("SVCP-VIPS"))
		if !h.Look() {
			h.Error("a look does not find what nobody has told of")
		}
	})
}
