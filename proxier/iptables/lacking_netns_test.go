//go:build netns

package iptables_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// syncUnserved syncs and returns what could not be served.
func (h *host) syncUnserved(b *iptables.Backend, delta *policy.Delta) *proxier.PartialError {
	h.Helper()
	err := b.Sync(context.Background(), h.World.State, delta)
	var unserved *proxier.PartialError
	if err != nil && !errors.As(err, &unserved) {
		h.Fatal(err)
	}
	return unserved
}

// sticky returns a service with affinity.
func sticky(fam policy.Family, n int) *policy.Resolved {
	res := backendtest.Web(fam, n, 3)
	for _, p := range res.Pools {
		p.Affinity = time.Hour
	}
	return res
}

// A service that needs a match which the host lacks is set aside, by name: it
// stops no other, and its address refuses.
func TestMissingMatchSetsItsServiceAside(t *testing.T) {
	everywhere(t, func(h *host) {
		backendtest.WithoutExtension(h.TB, "xt_recent")
		h.Restart()
		b := h.Backend
		for _, res := range []*policy.Resolved{backendtest.Web(h.Family, 1, 2), sticky(h.Family, 2), backendtest.Web(h.Family, 3, 2)} {
			h.World.Put(res.Key, res)
		}
		if changes, err := b.Plan(context.Background(), h.World.State); err != nil || len(changes) == 0 {
			h.Errorf("plan before the first sync: %v, %v", changes, err)
		}
		ended, end := context.WithCancel(context.Background())
		end()
		if err := b.Sync(ended, h.World.State, nil); !errors.Is(err, context.Canceled) { // what is lacking stays known
			h.Errorf("sync whose context has ended: %v", err)
		}
		u := h.syncUnserved(b, nil)
		if u == nil || u.N != 1 || !strings.Contains(u.Error(), "service default/web-2 needs the match recent, which this host lacks: ") {
			h.Fatalf("unserved: got %v", u)
		}
		for _, f := range sticky(h.Family, 2).Frontends {
			if !u.Frontends[f.Key] {
				h.Errorf("unserved: %v, without %v", u.Frontends, f.Key)
			}
		}
		later := backendtest.Web(h.Family, 4, 2)
		if u := h.syncUnserved(b, h.World.Put(later.Key, later)); u == nil || u.N != 1 {
			h.Errorf("a later service: unserved: got %v", u)
		}
		text := h.Dump()
		for _, n := range []int{1, 3, 4} {
			if !strings.Contains(text, backendtest.Web(h.Family, n, 2).Key.Name+":http\" -j SVCP-SVC-") {
				h.Errorf("service %d is not there:\n%s", n, text)
			}
		}
		if strings.Contains(text, "web-2") {
			h.Errorf("service 2 has rules:\n%s", text)
		}
		plain := backendtest.Web(h.Family, 2, 3)
		if u := h.syncUnserved(b, h.World.Put(plain.Key, plain)); u != nil {
			h.Errorf("without affinity: unserved: got %v", u)
		}
		again := sticky(h.Family, 2)
		if u := h.syncUnserved(b, h.World.Put(again.Key, again)); u == nil || u.N != 1 {
			h.Errorf("with affinity again: unserved: got %v", u)
		}
		if changes, err := b.Plan(context.Background(), h.World.State); err != nil || len(changes) > 0 {
			h.Errorf("still to change: %v, %v", changes, err)
		}
		if damaged, err := b.Look(context.Background()); err != nil || damaged {
			h.Errorf("look: %v, %v", damaged, err)
		}
		os.Unsetenv("XTABLES_LIBDIR") // the match comes
		if u := h.syncUnserved(b, nil); u != nil {
			h.Errorf("when the match has come: unserved: got %v", u)
		}
		h.Settled("the match has come")
	})
}

// What all rules need is proved at once, and named.
func TestMissingNeedIsNamed(t *testing.T) {
	everywhere(t, func(h *host) {
		before := h.Dump()
		for extension, name := range map[string]string{"xt_set": "set", "xt_addrtype": "addrtype"} {
			backendtest.WithoutExtension(h.TB, extension)
			_, err := iptables.New(context.Background(), h.Family)
			if err == nil || !strings.Contains(err.Error(), "this host lacks "+name+", which "+h.tool("")+" needs: ") {
				h.Errorf("without %s: got %v", extension, err)
			}
		}
		os.Unsetenv("XTABLES_LIBDIR")
		if after := h.Dump(); after != before {
			h.Errorf("the probe left something:\n%s", after)
		}
	})
}

// An error that a rule of a service causes names the service.
func TestErrorsNameTheService(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Sync(nil)
		backendtest.WithoutExtension(h.TB, "xt_recent") // after it was there
		res := sticky(h.Family, 2)
		h.World.Put(res.Key, res)
		err := h.Backend.Sync(context.Background(), h.World.State, nil)
		if err == nil || !strings.Contains(err.Error(), "service default/web-2: ") {
			h.Errorf("got %v", err)
		}
		if u := h.syncUnserved(h.Backend, nil); u == nil || u.N != 1 {
			h.Errorf("the sync after: unserved: got %v", u)
		}
		h.Sync(h.World.Put(source.Key{Namespace: "default", Name: "web-2"}, nil))
	})
}

// A change that was interrupted may need what the host lacks by now: the sync after it
// finds out, in place of failing too.
func TestInterruptedChange(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Sync(nil)
		backendtest.WithoutExtension(h.TB, "xt_recent") // after it was there
		res := sticky(h.Family, 2)
		delta := h.World.Put(res.Key, res)
		ended, end := context.WithCancel(context.Background())
		end()
		if err := h.Backend.Sync(ended, h.World.State, delta); !errors.Is(err, context.Canceled) {
			h.Errorf("sync whose context has ended: %v", err)
		}
		if u := h.syncUnserved(h.Backend, nil); u == nil || u.N != 1 {
			h.Errorf("the sync after: unserved: got %v", u)
		}
	})
}
