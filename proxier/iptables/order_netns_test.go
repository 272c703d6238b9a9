//go:build netns

package iptables_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A rule that another program puts in front of our jumps is stepped over, in every built-in
// chain that has them: by a look and its repair, and by a full sync.
func TestJumpsComeFirst(t *testing.T) {
	for _, chain := range []string{"-t nat %s PREROUTING", "-t nat %s OUTPUT", "-t nat %s POSTROUTING", "%s INPUT", "%s FORWARD", "%s OUTPUT"} {
		t.Run(chain[strings.LastIndex(chain, " ")+1:], func(t *testing.T) {
			everywhere(t, func(h *host) {
				var log bytes.Buffer
				h.Backend.SetLog(slog.New(slog.NewTextHandler(&log, nil)))
				h.Fill(seeded(11), 3)
				h.Sync(nil)
				rule := " -m comment --comment foreign -g FIRST"
				h.iptables(strings.Replace(chain, "%s", "-N", 1)[:strings.Index(chain, "%s")] + "-N FIRST")
				insert := func() { h.iptables(strings.Replace(chain, "%s", "-I", 1) + rule) }
				insert()
				if planned := h.Planned(); len(planned) != 1 || !strings.Contains(planned[0].Object, "jumps of") {
					h.Errorf("plan: %v", planned)
				}
				if !h.Look() {
					h.Error("a look does not find it")
				}
				h.Repair(&policy.Delta{})
				h.comesAfter("the repair", rule)
				if !strings.Contains(log.String(), "moved the jumps to our chains before foreign rules that may stop services") || !strings.Contains(log.String(), "-g FIRST") {
					h.Errorf("log:\n%s", &log)
				}
				if w := h.Backend.Warnings(); len(w) != 1 || !strings.Contains(w[0], "-g FIRST") {
					h.Errorf("warnings: %q", w)
				}
				insert()
				h.Restart()
				h.Sync(nil)
				h.comesAfter("a restart", rule)
			})
		})
	}
}

// comesAfter fails the test unless our jumps come before a rule, which is still there.
func (h *host) comesAfter(when, rule string) {
	h.Helper()
	h.Settled(when)
	if h.Look() {
		h.Errorf("%s: a look finds a difference", when)
	}
	var chain []string
	for line := range strings.Lines(h.Dump()) {
		if strings.HasPrefix(line, "-A SVCP-") || strings.Contains(line, "SVCP-") && strings.HasPrefix(line, ":") {
			continue
		}
		chain = append(chain, strings.TrimSpace(line))
	}
	foreign := slices.IndexFunc(chain, func(l string) bool { return strings.HasSuffix(l, rule) })
	if foreign < 1 {
		h.Fatalf("%s: the foreign rule is gone, or first:\n%s", when, h.Dump())
	}
	name := strings.Fields(chain[foreign])[1]
	for _, l := range chain[foreign:] {
		if strings.HasPrefix(l, "-A "+name+" ") && strings.Contains(l, " -j SVCP-") {
			h.Errorf("%s: it comes before %s", when, l)
		}
		if l == "COMMIT" {
			break
		}
	}
}

// Rules that only accept in the table filter, count or log stay in front.
func TestHarmlessRulesStayInFront(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Fill(seeded(12), 3)
		h.Sync(nil)
		for _, rule := range []string{"-i foreign0 -j ACCEPT", "-s 192.0.2.1", "-j MARK --set-mark 1"} {
			if h.Family == policy.IPv6 {
				rule = strings.Replace(rule, "192.0.2.1", "2001:db8::1", 1)
			}
			table := "-t filter"
			if strings.Contains(rule, "MARK") {
				table = "-t nat"
			}
			h.iptables(table + " -I OUTPUT " + strings.Replace(rule, "-i", "-o", 1))
		}
		h.Settled("harmless rules in front")
		if h.Look() {
			h.Error("a look finds a difference")
		}
	})
}

// A rule that another program puts in front is heard of: by an event in the nft variant, by the size of
// its table in the legacy variant.
func TestHearsOfRulesInFront(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) { testHearsOfRulesInFront(t, variant) })
	}
}

func testHearsOfRulesInFront(t *testing.T, variant string) {
	h := newHost(t, variant, policy.IPv4)
	h.Fill(seeded(13), 3)
	h.Sync(nil)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan proxier.ForeignChange, 10), make(chan error)
	go netnstest.Here(t, func() { ended <- h.Backend.Watch(ctx, func(c proxier.ForeignChange) { told <- c }) })()
	defer func() { cancel(); <-ended }()
	pace.Until(t, "told of a rule in front of ours", func() bool {
		h.iptables("-I FORWARD -j DROP")
		select {
		case <-told:
			return true
		case <-time.After(2 * time.Second): // it may not listen yet
			h.iptables("-D FORWARD -j DROP")
			return false
		}
	})
	h.Repair(&policy.Delta{})
	h.comesAfter("the event", "-j DROP")
}
