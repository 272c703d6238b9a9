package daemon

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
)

var plain = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

// Of settings that are far too large, what shows that they are is read.
func TestHugeSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcproxy.toml")
	if err := os.WriteFile(path, []byte("# "), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	text, err := contents(path)
	if err != nil || len(text) != configs.MaxSize+1 {
		t.Errorf("read %d bytes, %v; want one more than are accepted", len(text), err)
	}
	if _, faults := configs.Parse(path, text); len(faults) != 1 || !strings.Contains(faults[0].Msg, "more than") {
		t.Errorf("faults %v; want one about the size", faults)
	}
}

// What can change at run time does, and is not named.
func TestAtRunTime(t *testing.T) {
	fixed, want := configs.Default(), configs.Default()
	want.Mode = "iptables"
	want.Zone, want.Masquerade, want.LocalhostNodePorts = "z", "all", true
	want.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	want.LocalInterfaces = []string{"cni0"}
	want.ServiceCIDRs = want.LocalCIDRs
	want.NodePortAddresses = []string{"all"}
	want.Sync = configs.Sync{MinInterval: time.Second, ResyncInterval: time.Minute}
	want.Log.Level = "debug"
	want.Guard, want.History = configs.Guard{Removals: 30, Apply: "manual"}, configs.History{Keep: 3}
	want.BGP = configs.BGP{AS: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []configs.BGPPeer{{AS: 64500}}}
	now, restart := atRunTime(fixed, want)
	if diff := cmp.Diff(want, now, plain); diff != "" || restart != nil {
		t.Errorf("needs a restart %q; in use (-want +got):\n%s", restart, diff)
	}
}

// All else stays as it was at start, and is named.
func TestNeedsRestart(t *testing.T) {
	tests := []struct {
		name   string
		change func(*configs.Settings)
	}{
		{"sources", func(s *configs.Settings) { s.Sources = nil }},
		{"node_name", func(s *configs.Settings) { s.NodeName = "other" }},
		{"families", func(s *configs.Settings) { s.Families = s.Families[:1] }},
		{"masquerade_bit", func(s *configs.Settings) { s.MasqueradeBit++ }},
		{"http_address", func(s *configs.Settings) { s.HTTPAddress = "" }},
		{"metrics_address", func(s *configs.Settings) { s.MetricsAddress = ":1" }},
		{"ipvs", func(s *configs.Settings) { s.IPVS.Scheduler = "rr" }},
		{"kubernetes", func(s *configs.Settings) { s.Kubernetes.ProxyName = "x" }},
		{"limits", func(s *configs.Settings) { s.Limits.Services = 1 }},
		{"log.format", func(s *configs.Settings) { s.Log.Format = "json" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fixed, want := configs.Default(), configs.Default()
			tt.change(&want)
			now, restart := atRunTime(fixed, want)
			if diff := cmp.Diff(fixed, now, plain); diff != "" {
				t.Errorf("in use (-as at start +now):\n%s", diff)
			}
			if diff := cmp.Diff([]string{tt.name}, restart); diff != "" {
				t.Errorf("needs a restart (-want +got):\n%s", diff)
			}
		})
	}
}

// What is in use stays while the directory is gone, and when svcproxy starts
// without it, or with a file that is broken, empty or no file.
func TestLastGoodSettings(t *testing.T) {
	const good = "http_address = \"\"\nlocal_cidrs = [\"10.1.0.0/16\"]\n"
	tests := []struct {
		name   string
		change func(r *running)
		fault  string
		cidrs  string // at the next start
	}{
		{"broken", func(r *running) { r.write("conf/svcproxy.toml", "local_cidrs = 1\n") }, "local_cidrs", "[10.1.0.0/16]"},
		{"empty", func(r *running) { r.write("conf/svcproxy.toml", "") }, "cannot be read: it says nothing", "[10.1.0.0/16]"},
		{"pipe", func(r *running) {
			_ = os.Remove(r.dir + "/conf/svcproxy.toml")
			if err := unix.Mkfifo(r.dir+"/conf/svcproxy.toml", 0o600); err != nil {
				r.t.Fatal(err)
			}
		}, "cannot be read: it is not a regular file", "[10.1.0.0/16]"},
		{"directory gone", func(r *running) { r.moveAway() }, "no such file or directory", "[10.1.0.0/16]"},
		{"removed", func(r *running) { _ = os.Remove(r.dir + "/conf/svcproxy.toml") }, "", "[]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := launch(t, good)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			r.toSubdirectory()
			r.start()
			r.ready()
			tt.change(r)
			time.Sleep(4 * settingsPoll)
			if _, got, _ := r.kernel.seen(); tt.fault != "" && got != "[10.1.0.0/16]" {
				t.Errorf("while it runs local_cidrs became %s", got)
			}
			for range 2 {
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				r.told = new(logged)
				r.start()
				r.ready()
				if _, got, _ := r.kernel.seen(); got != tt.cidrs {
					t.Errorf("after a start local_cidrs is %s; want %s", got, tt.cidrs)
				}
				st := r.status()
				if got := len(st.Faults); tt.fault == "" && got > 0 || tt.fault != "" && (got != 1 || !strings.Contains(st.Faults[0].String(), tt.fault)) {
					t.Errorf("faults: %v; want %q", st.Faults, tt.fault)
				}
			}
		})
	}
}

// A svcproxy.toml that comes back after a moment, as by rm and cp, changes nothing.
func TestSettingsGoneForAMoment(t *testing.T) {
	const settings = "http_address = \"\"\nlocal_cidrs = [\"10.1.0.0/16\"]\n"
	for range 10 {
		r := launch(t, settings)
		r.ready()
		began := time.Now()
		if err := os.Remove(r.dir + "/svcproxy.toml"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * settingsPoll)
		r.write("svcproxy.toml", settings)
		took := time.Since(began)
		time.Sleep(2 * settingsPoll)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if took > (goneAfter-1)*settingsPoll {
			continue // that was no moment: the machine is busy
		}
		if strings.Contains(r.log.String(), "settings changed") {
			t.Errorf("gone for %v:\n%s", took, r.log)
		}
		return
	}
	t.Error("the machine is too busy for a moment of 1.2 s")
}

// A host without svcproxy.toml starts as before when the directory has gone.
func TestDirectoryGoneWithoutSettings(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	restart := func(change func()) {
		t.Helper()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		change()
		r.told = new(logged)
		r.start()
		r.ready()
	}
	restart(func() {
		r.toSubdirectory()
		if err := os.Remove(r.dir + "/conf/svcproxy.toml"); err != nil {
			t.Fatal(err)
		}
	})
	restart(r.moveAway)
	if st := r.status(); len(st.Faults) != 1 || !strings.Contains(st.Faults[0].String(), "cannot be read") {
		t.Errorf("faults: %v", st.Faults)
	}
}

// toSubdirectory moves the files to a directory that can be moved away itself.
func (r *running) toSubdirectory() {
	r.t.Helper()
	if err := os.Mkdir(r.dir+"/conf", 0o755); err != nil {
		r.t.Fatal(err)
	}
	for _, name := range []string{"svcproxy.toml", "web.toml"} {
		if err := os.Rename(r.dir+"/"+name, r.dir+"/conf/"+name); err != nil {
			r.t.Fatal(err)
		}
	}
	r.config, r.told = "conf", new(logged)
}

func (r *running) moveAway() {
	r.t.Helper()
	if err := os.Rename(r.dir+"/conf", r.dir+"/away"); err != nil {
		r.t.Fatal(err)
	}
}

// Settings that changed again before they were read are not those that were found to be whole: the next looks read them.
func TestSettingsChangeWhileRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "svcproxy.toml")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("mode = \"ipvs\"\n")
	w := &settingsWatcher{configDir: dir, stateDir: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	w.load = func(path string) (configs.Settings, []source.Fault, error) {
		put("# truncated, to be written again")
		return configs.Load(path)
	}
	w.changed = func(configs.Settings, bool) { t.Error("what was never whole is used") }
	w.inUse.Mode = "nftables"
	if w.read(t.Context()); !bytes.Equal(w.text, unknown) || w.inUse.Mode != "nftables" {
		t.Errorf("taken for read: %q; in use %q", w.text, w.inUse.Mode)
	}
}
