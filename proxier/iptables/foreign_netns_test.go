//go:build netns

package iptables_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

var poolChain = regexp.MustCompile(`SVCP-SVC-[A-Z2-7]{16}`)

// A chain of others that jumps to one of ours which must go stops no sync: ours
// stays, empty, until nothing jumps to it, and a warning names theirs.
func TestForeignChainLeadsToOurs(t *testing.T) {
	everywhere(t, func(h *host) {
		var log bytes.Buffer
		h.Backend.SetLog(slog.New(slog.NewTextHandler(&log, nil)))
		web, other := backendtest.Web(h.Family, 1, 2), backendtest.Web(h.Family, 2, 2)
		h.World.Put(web.Key, web)
		h.Sync(nil)
		ours := poolChain.FindString(h.Dump())
		h.iptables("-t nat -N LEADS")
		h.iptables("-t nat -A LEADS -j " + ours)
		held := func(after string) {
			h.Helper()
			h.Settled(after)
			text := h.Dump()
			if !strings.Contains(text, ":"+ours+" ") || strings.Contains(text, "-A "+ours+" ") {
				h.Errorf("%s: chain %s is gone, or not empty:\n%s", after, ours, text)
			}
			if h.Look() {
				h.Errorf("%s: a look finds something", after)
			}
		}
		h.Sync(h.World.Put(web.Key, nil))
		if !strings.Contains(log.String(), "led_to_by=LEADS") || !strings.Contains(log.String(), ours) {
			h.Errorf("the warning does not name the chains: %q", &log)
		}
		held("removed")
		h.Sync(h.World.Put(other.Key, other))
		held("another added")
		h.Sync(nil)
		held("full sync")
		again := backendtest.Web(h.Family, 1, 3)
		h.Sync(h.World.Put(web.Key, again))
		if !strings.Contains(h.Dump(), "-A "+ours+" ") {
			h.Error("the service is back, and its chain still empty")
		}
		h.Settled("back")
		h.Sync(h.World.Put(web.Key, nil))
		held("removed again")

		h.iptables("-t nat -F LEADS")
		if !h.Look() {
			h.Error("nobody leads there any more: a look does not find it")
		}
		h.Sync(&policy.Delta{})
		h.Settled("nobody leads there")
		if strings.Contains(h.Dump(), ":"+ours+" ") {
			h.Error("the chain stays although nothing jumps to it")
		}
	})
}

// cleanup says what it must leave.
func TestCleanupWithForeignChain(t *testing.T) {
	everywhere(t, func(h *host) {
		web := backendtest.Web(h.Family, 1, 2)
		h.World.Put(web.Key, web)
		h.Sync(nil)
		ours := poolChain.FindString(h.Dump())
		h.iptables("-t nat -N LEADS")
		h.iptables("-t nat -A LEADS -j " + ours)
		err := h.Backend.Cleanup(context.Background())
		if err == nil || !strings.Contains(err.Error(), "chain "+ours+" of table nat stays, empty: LEADS jumps to it") {
			h.Errorf("got %v", err)
		}
		if n := strings.Count(h.Dump(), "SVCP-"); n != 3 { // in a comment of others, the chain, the rule that jumps to it
			h.Errorf("left:\n%s", h.Dump())
		}
	})
}

// A change of many services goes on while others commit all the time, which makes
// iptables-nft-restore begin again.
func TestBulkBesideWriter(t *testing.T) {
	h := newHost(t, "nft", policy.IPv4)
	for i := range 600 {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Put(res.Key, res)
	}
	stop := disturb(h, 20*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	fatal.If(t, h.Backend.Sync(ctx, h.World.State, nil))
	if err := h.Backend.Sync(ctx, h.World.State, nil); err != nil { // which reads all of it
		t.Errorf("the second full sync: %v", err)
	}
	h.iptables("-t nat -F SVCP-MARK-MASQ")
	if damaged, err := h.Backend.Look(ctx); err != nil || !damaged {
		t.Errorf("look: %v, %v", damaged, err)
	}
	if err := h.Backend.Sync(ctx, h.World.State, &policy.Delta{}); err != nil {
		t.Errorf("the repair: %v", err)
	}
	stop()
	h.Settled("syncs beside a writer")
}

// disturb commits to a table of others every so often, until the test ends or calls
// what it returns.
func disturb(h *host, every time.Duration) (end func()) {
	h.Helper()
	conn, err := nft.Dial()
	fatal.If(h, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(h, func() {
		batch := nft.NewBatch(nft.Table{Family: 2, Name: "disturber"})
		for n := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(every):
			}
			batch.Reset()
			batch.AddTable("")
			if n++; n%2 == 0 {
				batch.DeleteTable()
			}
			if err := conn.Commit(batch); err != nil {
				h.Errorf("disturbing: %v", err)
				return
			}
		}
	}))
	end = sync.OnceFunc(func() { close(stop); wg.Wait(); conn.Close() })
	h.Cleanup(end)
	return end
}

// A run that others disturb may have removed some of it when it fails: cleanup removes the rest.
func TestCleanupAfterAPartOfIt(t *testing.T) {
	h := newHost(t, "nft", policy.IPv4)
	web := backendtest.Web(h.Family, 1, 2)
	h.World.Put(web.Key, web)
	h.Sync(nil)
	restore, err := exec.LookPath("iptables-restore")
	fatal.If(t, err)
	dir := t.TempDir()
	script := "#!/bin/sh\n" + `case "$*" in *version*) exec ` + restore + ` "$@" ;; esac
if mkdir "${0%/*}/failed" 2>/dev/null; then
	sed '/^COMMIT/q' | ` + restore + ` "$@"
	exit 1
fi
exec ` + restore + ` "$@"
`
	fatal.If(t, os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if err := iptables.Cleanup(t.Context(), h.Family); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "failed")); err != nil {
		t.Errorf("no run failed: %v", err)
	}
	if left := h.Dump(); strings.Contains(left, ":SVCP-") {
		t.Errorf("left:\n%s", left)
	}
}

// What reads all tables at once, before any sync and in cleanup, comes to an end too
// while others commit all the time.
func TestStartAndCleanupBesideWriter(t *testing.T) {
	h := newHost(t, "nft", policy.IPv4)
	for i := range 1500 {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Put(res.Key, res)
	}
	h.Sync(nil)
	stop := disturb(h, 20*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	again, err := iptables.New(ctx, policy.IPv4)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	defer again.Close()
	if again.Tool() != h.Backend.Tool() {
		t.Errorf("started with %s, rules are in %s", again.Tool(), h.Backend.Tool())
	}
	if err := again.Cleanup(ctx); err != nil {
		t.Errorf("cleaning up: %v", err)
	}
	stop()
	if left := h.Dump(); strings.Contains(left, ":SVCP-") {
		t.Errorf("left:\n%s", left)
	}
}
