package hostsetup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// modulesOf returns the names of the modules of a mode.
func modulesOf(s configs.Settings, mode string) (names []string) {
	for _, m := range needed(s, modes.OfSetting(mode)) {
		names = append(names, m.Name)
	}
	return names
}

func TestNeededModules(t *testing.T) {
	four := configs.Settings{Families: []string{"ipv4"}, IPVS: configs.IPVS{Scheduler: "wrr"}}
	has := func(s configs.Settings, mode, module string, want bool) {
		t.Helper()
		if got := slices.Contains(modulesOf(s, mode), module); got != want {
			t.Errorf("%s mode has %s: %v, want %v", mode, module, got, want)
		}
	}
	has(four, "iptables", "iptable_nat", true)
	has(four, "iptables", "ip6table_nat", false)
	has(four, "iptables", "ip_vs", false)
	has(four, "ipvs", "ip_vs_wrr", true)
	has(four, "ipvs", "ip_vs_mh", true)
}

// fakeModprobe puts a modprobe first on the path that makes an entry in a tree,
// and parameters from its options, except for modules whose name holds "gone".
func fakeModprobe(t *testing.T) (string, *initializer, *strings.Builder) {
	t.Helper()
	bin, sys := t.TempDir(), t.TempDir()
	script := `#!/bin/sh
shift
case $1 in *gone*) echo "modprobe: FATAL: Module $1 not found." >&2; exit 1;; esac
mkdir -p ` + sys + `/$1/parameters
m=$1; shift
for o; do echo ${o#*=} >` + sys + `/$m/parameters/${o%=*}; done
`
	fatal.If(t, os.WriteFile(filepath.Join(bin, "modprobe"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	out := new(strings.Builder)
	return sys, newInitializer(out, sys), out
}

func TestLoadModules(t *testing.T) {
	_, in, out := fakeModprobe(t)
	for _, m := range []string{"nf_nat", "nf_nat", "gone", "gone_too"} {
		in.load(t.Context(), m)
	}
	if diff := cmp.Diff("module nf_nat: loaded\n", out.String()); diff != "" || in.errs != nil {
		t.Errorf("errors %v; said (-want +got):\n%s", in.errs, diff)
	}
	want := map[string][]string{"modprobe: FATAL: Module not found.": {"gone", "gone_too"}}
	if diff := cmp.Diff(want, in.missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestLoadWithoutModprobe(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	out := new(strings.Builder)
	in := newInitializer(out, t.TempDir())
	in.modules(t.Context(), configs.Settings{}, modes.OfSetting("nftables"))
	want := "modules not loaded, which may be built in or not needed here: " + strings.Join(modulesOf(configs.Settings{}, "nftables"), " ") +
		": exec: \"modprobe\": executable file not found in $PATH\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}

func TestRecentListsAreLongEnough(t *testing.T) {
	const loaded = "module xt_recent: loaded ip_list_tot=10000 ip_list_hash_size=1024\n"
	iptables := modes.OfSetting("iptables")
	t.Run("loaded with long lists", func(t *testing.T) {
		sys, in, out := fakeModprobe(t)
		in.modules(t.Context(), configs.Settings{}, iptables)
		if short := verifyClients(sys, iptables[0]); !strings.HasSuffix(out.String(), loaded) || short != "" {
			t.Errorf("said %swant %sand then %q", out, loaded, short)
		}
	})
	t.Run("loaded already", func(t *testing.T) {
		sys, in, out := fakeModprobe(t)
		fatal.If(t, modprobe(t.Context(), "xt_recent", "ip_list_tot=100"))
		in.modules(t.Context(), configs.Settings{}, iptables)
		_, said, _ := strings.Cut(out.String(), "module xt_statistic: loaded\n") // the last of all modes
		if said != verifyClients(sys, iptables[0])+"\n" ||
			!strings.HasPrefix(said, "session affinity remembers only 100 clients of an endpoint: module xt_recent has ip_list_tot=100, ") {
			t.Errorf("said %s", out)
		}
	})
}

// The boot loads the same modules as init, except for those of legacy iptables.
func TestBootAndInitLoadTheSameModules(t *testing.T) {
	read := func(name string) []string {
		b, err := os.ReadFile(filepath.Join("../../../systemd", name))
		fatal.If(t, err)
		var lines []string
		for l := range strings.Lines(string(b)) {
			if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
				lines = append(lines, l)
			}
		}
		return lines
	}
	want := modulesOf(configs.Settings{Families: []string{"ipv4", "ipv6"}}, "iptables")
	want = slices.DeleteFunc(want, func(m string) bool { return strings.Contains(m, "table") && m != "nf_tables" })
	got := read("modules-load.d/svcproxy.conf")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modules-load.d (-init +file):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"options xt_recent ip_list_tot=10000 ip_list_hash_size=1024"}, read("modprobe.d/svcproxy.conf")); diff != "" {
		t.Errorf("modprobe.d (-init +file):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"net.ipv4.ip_forward = 1", "net.ipv6.conf.all.forwarding = 1"}, read("sysctl.d/50-svcproxy.conf")); diff != "" {
		t.Errorf("sysctl.d (-init +file):\n%s", diff)
	}
}
