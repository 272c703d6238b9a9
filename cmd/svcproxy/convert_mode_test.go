package main

import (
	"os"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A file for ipvs mode is refused by a daemon in another one, which convert says unless the settings have that mode.
func TestConvertSaysToSetIPVSMode(t *testing.T) {
	const note = `in: scheduler, direct and tunnel are for ipvs mode; set mode = "ipvs" in svcproxy.toml`
	for _, tt := range []struct {
		settings, mode string
		said           bool
	}{
		{"", "ipvs", true}, {"mode = \"nftables\"\n", "ipvs", true}, {"mode = \"ipvs\"\n", "ipvs", false}, {"mode = \"ipvs\"\n", "nftables", false}, {"", "auto", true},
	} {
		dir := etc(t, map[string]string{"svcproxy.toml": tt.settings})
		t.Chdir(dir)
		fatal.If(t, os.WriteFile("in", []byte(saved), 0o644))
		code, _, stderr := call(t, dir, "convert", "ipvsadm", "in", "--mode", tt.mode)
		if said := strings.Contains(stderr, note); said != tt.said || code != 0 {
			t.Errorf("%q, --mode %s: exit %d, said %v: %s", tt.settings, tt.mode, code, said, stderr)
		}
	}
}
