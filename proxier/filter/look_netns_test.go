//go:build netns

package filter

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// What one reading lacks while another process commits is no damage: the kernel leaves
// out chains then. What two lack is, and what one lacks while nobody writes.
func TestLookWantsConfirmation(t *testing.T) {
	for _, tt := range []struct {
		readings []string // in order; the ones after them lack nothing
		want     bool
	}{
		{[]string{"lacking, changing"}, false},
		{[]string{"lacking, changing", "changing"}, false},
		{[]string{"changing", "lacking"}, false}, // is not read twice
		{[]string{"lacking, changing", "lacking another, changing"}, false},
		{[]string{"lacking, changing", "lacking, changing"}, true},
		{[]string{"lacking, changing", "lacking"}, true},
		{[]string{"lacking"}, true},
	} {
		t.Run(strings.Join(tt.readings, " then "), func(t *testing.T) {
			k, readings := misread(t)
			readings(tt.readings...)
			if damaged, err := k.Look(t.Context()); err != nil || damaged != tt.want {
				t.Errorf("damaged: %v, %v, want %v", damaged, err, tt.want)
			}
		})
	}
}

// Cleanup leaves nothing behind that one reading lacked while another process committed.
func TestCleanupReadsAgain(t *testing.T) {
	for _, first := range []string{"changing", "lacking, changing", "lacking all, changing"} {
		t.Run(first, func(t *testing.T) {
			k, readings := misread(t)
			readings(first)
			fatal.If(t, k.Cleanup(t.Context()))
			if left, err := exec.Command(k.Tool() + "-save").Output(); err != nil || strings.Contains(string(left), layout.Prefix) {
				t.Errorf("%v, left:\n%s", err, left)
			}
		})
	}
}

// Read has the next look read all again where another process committed meanwhile.
func TestReadBesideCommits(t *testing.T) {
	k, readings := misread(t)
	k.events.watching.Store(true) // as if events were heard
	for _, tt := range []struct {
		reading string
		want    bool
	}{{"", false}, {"changing", true}} {
		k.events.dirty.Store(false)
		readings(tt.reading)
		if _, err := k.Read(t.Context(), layout.NewRules(policy.IPv4)); err != nil {
			t.Fatal(err)
		}
		if got := k.events.mustRead(); got != tt.want {
			t.Errorf("reading %q: the next look reads again: %v, want %v", tt.reading, got, tt.want)
		}
	}
}

// What a look finds after events were lost is to be repaired, not to be looked for: it is reported already.
func TestDamageAfterLostEvents(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		k, readings := misread(t)
		before := disturbance{proxier.ForeignChange{Lost: true}, k.mirror.now().resets - 1}
		if damaged {
			readings("lacking")
		}
		var told []proxier.ForeignChange
		k.lookAfter(t.Context(), before, func(c proxier.ForeignChange) { told = append(told, c) })
		if len(told) != 1 || told[0].Lost == damaged || k.Reported() != damaged {
			t.Errorf("damaged %v: told of %+v, damage is reported: %v", damaged, told, k.Reported())
		}
	}
}

// misread returns a Kernel that is synced, and a function that says what becomes of its
// next readings, see wrapSave.
func misread(t *testing.T) (k *Kernel, readings func(...string)) {
	t.Helper()
	netnstest.Enter(t)
	file := wrapSave(t, layout.MarkMasq, layout.MarkNonLocal)
	k, err := open(t.Context(), policy.IPv4, &xtables.Choice{Use: toolOf(t, xtables.NFT)})
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	resync(t, k, layout.NewRules(policy.IPv4), backendtest.NewWorld(policy.IPv4))
	return k, func(lines ...string) {
		t.Helper()
		fatal.If(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	}
}

// wrapSave puts a program in front of iptables-save for the rest of the test. Each line of
// the file that it returns is about the next time that it runs: "lacking" leaves a chain
// out, "lacking another" the other one, "lacking all" those of ours, and "changing" commits
// to nf_tables meanwhile.
func wrapSave(t *testing.T, chain, another string) (readings string) {
	t.Helper()
	dir := t.TempDir()
	readings = filepath.Join(dir, "readings")
	for _, base := range []string{"iptables", "iptables-nft"} {
		for _, name := range []string{base, base + "-restore", base + "-save"} {
			program, err := exec.LookPath(name)
			fatal.If(t, err)
			if name != base+"-save" {
				err = os.Symlink(program, filepath.Join(dir, name))
			} else {
				err = os.WriteFile(filepath.Join(dir, name), []byte(`#!/bin/sh
reading=
if [ -s `+readings+` ]; then
	reading=$(sed -n 1p `+readings+`)
	sed -i 1d `+readings+`
fi
case $reading in *changing) nft add table ip other$$ ;; esac
case $reading in
"lacking all"*) `+program+` "$@" | grep -v `+layout.Prefix+` ;;
"lacking another"*) `+program+` "$@" | grep -ve ':`+another+` ' -e '-A `+another+` ' ;;
lacking*) `+program+` "$@" | grep -ve ':`+chain+` ' -e '-A `+chain+` ' ;;
*) exec `+program+` "$@" ;;
esac
`), 0o755)
			}
			fatal.If(t, err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return readings
}
