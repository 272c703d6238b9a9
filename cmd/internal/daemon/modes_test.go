package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

func TestSupportedModesByFamily(t *testing.T) {
	s := configs.Settings{Mode: "auto", Sources: []string{"file", "kubernetes"}}
	withCluster(t)
	if err := sources.Supported(s); err != nil {
		t.Error(err)
	}
	withSources(t)
	want := `source "kubernetes" is not in this build; set sources to ["file"]`
	if err := sources.Supported(s); err == nil || err.Error() != want {
		t.Errorf("Supported: %v\n     want: %s", err, want)
	}
	s.Sources = s.Sources[:1]
	if err := sources.Supported(s); err != nil {
		t.Error(err)
	}
}

// A family that could not be opened at start is in use when it can be.
func TestMissingFamilyComesLater(t *testing.T) {
	old := modeswitch.MissingInterval
	modeswitch.MissingInterval = 20 * time.Millisecond
	t.Cleanup(func() { modeswitch.MissingInterval = old })
	var can atomic.Bool
	k := new(kernel)
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", modestest.Stub("nftables", func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 && !can.Load() {
			return nil, errors.New("no module")
		}
		return k, nil
	}))
	r.ready()
	warned := func() bool {
		return strings.Contains(strings.Join(r.status().Warnings, "\n"), "ipv6 is left out: no module")
	}
	if !warned() || len(r.status().Loop.Families) != 1 {
		t.Errorf("status %+v, want one family and a warning", r.status())
	}
	can.Store(true)
	r.eventually("both families in use", func() bool { return len(r.status().Loop.Families) == 2 && !warned() })
}

// auto chooses again when settings rule a mode out, or allow it again.
func TestAutoFollowsSettings(t *testing.T) {
	const auto, localhost = "http_address = \"\"\n", "http_address = \"\"\nlocalhost_node_ports = true\n"
	r := launch(t, auto, modestest.Stub("nftables", modestest.Opens(new(kernel))))
	r.ready()
	r.write("svcproxy.toml", localhost)
	r.eventually("in iptables mode", func() bool { return r.status().Settings.Mode == "iptables" })
	r.write("svcproxy.toml", auto)
	r.eventually("back in nftables mode", func() bool { return r.status().Settings.Mode == "nftables" })
}

// What the mode in use does not do is said where no other is available.
func TestAutoWithoutTheModeThatSettingsNeed(t *testing.T) {
	const settings = "http_address = \"\"\nfamilies = [\"ipv4\"]\n"
	r := launch(t, settings, modestest.Stub("nftables", modestest.Opens(new(kernel))))
	r.ready()
	r.kernel.set(func(k *kernel) { k.none = errors.New("no iptables") })
	r.write("svcproxy.toml", settings+"localhost_node_ports = true\n")
	r.eventually("warned of", func() bool {
		w := strings.Join(r.status().Warnings, "\n")
		return strings.Contains(w, `localhost_node_ports is for iptables mode, and mode is "nftables"`) && strings.Contains(w, "no iptables")
	})
	if mode := r.status().Settings.Mode; mode != "nftables" {
		t.Errorf("mode %q", mode)
	}
}
