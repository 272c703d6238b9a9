package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// hanging opens nothing until it may, and says what it waits for.
type hanging struct {
	kernel
	families []policy.Family // that hang
	may      chan struct{}
}

func (h *hanging) open(ctx context.Context, fam policy.Family, c modes.OpenConfig) (modes.Backend, error) {
	for _, hangs := range h.families {
		if hangs != fam {
			continue
		}
		defer awaited.Begin(ctx, "ip6tables-restore", nil)()
		select {
		case <-h.may:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return h.kernel.open(ctx, fam, c)
}

// hang has families of iptables mode hang while they are opened.
func hang(families ...policy.Family) *hanging {
	return &hanging{families: families, may: make(chan struct{})}
}

func soon(t *testing.T, patience *time.Duration) {
	old := *patience
	*patience = 50 * time.Millisecond
	t.Cleanup(func() { *patience = old })
}

// A family that hangs while it is opened keeps neither the other from serving nor the socket from answering.
func TestStartWithAFamilyThatHangs(t *testing.T) {
	soon(t, &modeswitch.OpenPatience)
	h := hang(policy.IPv6)
	r := launch(t, "http_address = \"\"\nmode = \"ipvs\"\n", modestest.Stub("ipvs", h.open))
	r.eventually("IPv4 served", func() bool { names, _, _ := h.seen(); return names == "default/web" })
	const want = "ipv6 is not in use yet: the start of ipvs mode waits for ip6tables-restore"
	r.eventually("reported", func() bool { return strings.Contains(strings.Join(r.status().Warnings, "\n"), want) })
	if st := r.status(); st.Settings.Mode != "ipvs" || len(st.Loop.Families) != 1 {
		t.Errorf("status %+v", st)
	}
	r.eventually("logged", func() bool { return strings.Contains(r.said(), "no progress; waiting") })
	close(h.may)
	r.eventually("IPv6 served", func() bool {
		fams := r.status().Loop.Families
		return len(fams) == 2 && !fams[1].LastSync.IsZero()
	})
	r.ready()
}

// A mode that hangs in all families is in use as soon as it is open.
func TestStartWithAModeThatHangs(t *testing.T) {
	soon(t, &modeswitch.OpenPatience)
	h := hang(policy.IPv4, policy.IPv6)
	r := launch(t, "http_address = \"\"\nmode = \"ipvs\"\n", modestest.Stub("ipvs", h.open))
	r.eventually("answered", func() bool { st, err := r.ask(); return err == nil && st.Settings.Mode == "ipvs" })
	if strings.Contains(r.told.String(), "READY=1") {
		t.Error("ready without a family")
	}
	close(h.may)
	r.ready()
	if names, _, _ := h.seen(); names != "default/web" {
		t.Errorf("the kernel holds %q", names)
	}
}

// A mode that settings name and that cannot be opened ends the daemon, however long it takes to fail.
func TestStartWithAModeThatFailsLate(t *testing.T) {
	soon(t, &modeswitch.OpenPatience)
	h := hang(policy.IPv4, policy.IPv6)
	h.set(func(k *kernel) { k.none = errors.New("no module") })
	r := launch(t, "http_address = \"\"\nmode = \"ipvs\"\n", modestest.Stub("ipvs", h.open))
	r.eventually("answered", func() bool { _, err := r.ask(); return err == nil })
	close(h.may)
	r.eventually("ended", func() bool { _, err := r.ask(); return err != nil })
	const want = "ipvs mode: ipv4 is left out: no module; ipv6 is left out: no module"
	if err := r.stop(); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	r.stop = func() error { return nil }
}

// Auto passes over a mode that hangs, and questions are answered meanwhile.
func TestAutoWithAModeThatHangs(t *testing.T) {
	soon(t, &modeswitch.OpenPatience)
	old := modeswitch.DecidePatience
	modeswitch.DecidePatience = time.Second
	t.Cleanup(func() { modeswitch.DecidePatience = old })
	h := hang(policy.IPv4, policy.IPv6)
	r := launch(t, "http_address = \"\"\n", modestest.Stub("nftables", h.open))
	r.eventually("answered", func() bool { _, err := r.ask(); return err == nil })
	r.eventually("chosen", func() bool { return r.status().Settings.Mode == "iptables" })
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("the kernel holds %q", names)
	}
}
