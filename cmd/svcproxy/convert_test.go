package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

const saved = "-A -t 192.0.2.10:80 -s wlc\n-a -t 192.0.2.10:80 -r 10.0.0.1:80 -m -w 1\n"

// Convert says by its exit code whether there is something to use, and its notes are no failure.
func TestConvertExitCodes(t *testing.T) {
	const usage = "\nRun 'svcproxy --help' for usage.\n"
	for _, tt := range []struct {
		name, text string
		args       []string
		code       int
		stderr     string // how it begins
	}{
		{"services and notes", saved, []string{"ipvsadm", "in"}, 0, "in: endpoints saw the addresses of clients"},
		{"not this format", saved, []string{"keepalived", "in"}, 1,
			"in:1: \"-A\" is left out: it is no service\nin:2: \"-a\" is left out: it is no service\nin: no service that can be used was found\n"},
		{"cannot be read", "-A nonsense\n", []string{"ipvsadm", "in"}, 1, "converting: in:1: \"nonsense\" is no option of a line of ipvsadm-save\n"},
		{"open to all", "listen a\n bind 192.0.2.1:80\n tcp-request connection reject if { src -f nowhere }\n server a 10.0.0.1:80\n", []string{"haproxy", "in"}, 1,
			"in:3: the sources of a rule are not known: reading an included file: stat nowhere: no such file or directory; convert on the host that has the file\n" +
				"in:3: the service is open to all sources now: \"tcp-request connection reject if { src -f nowhere }\" keeps sources out in a way that is not carried over; write source_ranges\n" +
				"in: open to all sources now: default/a\n"},
		{"no endpoint", "listen a\n bind 192.0.2.1:80\n server a db.example:80\n", []string{"haproxy", "in"}, 1, "in:1: service default/a is a comment: it has no endpoint"},
		{"open to a source that returned", "*nat\n-A PREROUTING -s 10.0.0.0/8 -j RETURN\n-A PREROUTING -d 192.0.2.1 -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1\n",
			[]string{"iptables", "in"}, 1, "in: endpoints saw the addresses of clients"},
		{"unknown format", "", []string{"ipvs", "in"}, 2, `svcproxy: unknown format "ipvs"; want keepalived, ipvsadm, iptables, haproxy, kubernetes or cilium`},
		{"no format", "", nil, 2, "svcproxy: accepts between 1 and 2 arg(s), received 0" + usage},
		{"no file", "", []string{"ipvsadm", "nowhere"}, 3, "reading what to convert: open nowhere: no such file or directory\n"},
		{"a directory", "", []string{"ipvsadm", "etc"}, 3, "reading what to convert: read etc: it is a directory\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := etc(t, nil)
			t.Chdir(dir)
			fatal.If(t, os.WriteFile("in", []byte(tt.text), 0o644))
			code, _, stderr := call(t, dir, append([]string{"convert"}, tt.args...)...)
			if code != tt.code || !strings.HasPrefix(stderr, tt.stderr) {
				t.Errorf("exit %d: %s\nwant %d: %s", code, stderr, tt.code, tt.stderr)
			}
		})
	}
}

// What is printed passes check, in the mode that is asked for, also where the mode cannot do all of it.
func TestConvertPassesCheck(t *testing.T) {
	for _, mode := range []string{"auto", "nftables", "ipvs", "iptables"} {
		dir := etc(t, nil)
		t.Chdir(dir)
		text := saved + "-A -t 192.0.2.11:80 -s rr\n-a -t 192.0.2.11:80 -r 10.0.0.1:80 -g -w 1\n"
		fatal.If(t, os.WriteFile("in", []byte(text), 0o644))
		code, out, stderr := call(t, dir, "convert", "ipvsadm", "in", "--mode", mode)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", mode, code, stderr)
		}
		fatal.If(t, os.WriteFile(filepath.Join("etc", "a.toml"), []byte(out), 0o644))
		if code, _, stderr := call(t, dir, "check", "--mode", mode); code != 0 {
			t.Errorf("%s: exit %d: %s\nof\n%s", mode, code, stderr, out)
		}
		has := strings.Contains(out, "\nscheduler = \"wlc\"\n") && strings.Contains(out, "\nforward = \"direct\"\n")
		if want := mode == "auto" || mode == "ipvs"; has != want {
			t.Errorf("%s: scheduler and forward: %v; want %v, in\n%s", mode, has, want, out)
		}
	}
}

// A conversion that finds no service prints what check refuses: in the place of a file that has services it removes none.
func TestConvertPrintsNothingToApply(t *testing.T) {
	for _, text := range []string{"", "virtual_server fwmark 1 {\n real_server 10.0.0.1 80 {\n }\n}\n"} {
		dir := etc(t, nil)
		t.Chdir(dir)
		fatal.If(t, os.WriteFile("in", []byte(text), 0o644))
		code, out, _ := call(t, dir, "convert", "keepalived", "in")
		if code != 1 || strings.Trim(out, "\n") == "" {
			t.Errorf("exit %d: %s", code, out)
		}
		for line := range strings.Lines(out) {
			if line != "\n" && !strings.HasPrefix(line, "#") {
				t.Errorf("%q is no comment", line)
			}
		}
		fatal.If(t, os.WriteFile(filepath.Join("etc", "a.toml"), []byte(out), 0o644))
		if code, _, stderr := call(t, dir, "check"); code != 1 {
			t.Errorf("check: exit %d: %s\nof\n%s", code, stderr, out)
		}
	}
}
