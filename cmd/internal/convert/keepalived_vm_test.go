//go:build vm

package convert_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/cmd/internal/daemon"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// realWorld are the goldens that keepalived itself reads as it should, and lines of ipvsadm that it
// makes and svcproxy does not, as their notes say.
var realWorld = map[string][]string{
	"dns": nil, "galera": nil, "ipv6": nil, "mail": nil, "web-dr": nil, "web-nat": nil,
	"group": {
		"-a -t 192.0.2.30:80 -r 192.0.2.30:80 -m -w 1", "-a -t 192.0.2.31:80 -r 192.0.2.30:80 -m -w 1",
		"-a -t 192.0.2.32:80 -r 192.0.2.30:80 -m -w 1", "-a -t 192.0.2.33:80 -r 192.0.2.30:80 -m -w 1",
		"-a -t 192.0.2.34:80 -r 192.0.2.30:80 -m -w 1", "-a -t 192.0.2.35:80 -r 192.0.2.30:80 -m -w 1",
		"-a -t 192.0.2.40:80 -r 192.0.2.30:80 -m -w 1", "-a -t 192.0.2.41:80 -r 192.0.2.30:80 -m -w 1",
		"-a -t 192.0.2.42:80 -r 192.0.2.30:80 -m -w 1", "-a -t 192.0.2.43:80 -r 192.0.2.30:80 -m -w 1",
	},
	"tunnel":   {"-a -t 192.0.2.61:443 -r 198.51.100.2:443 -g -w 1"},
	"includes": {"-a -t 192.0.2.99:80 -r 10.0.1.1:80 -m -w 1", "-a -t 192.0.2.99:80 -r 10.0.1.2:80 -m -w 1", "-a -t 192.0.2.99:80 -r 10.0.1.3:80 -m -w 1"},
	"legacy": {
		"-a -t 192.0.2.100:8443 -r 127.0.0.1:8443 -m -w 1",
		"-A -u 192.0.2.101:80 -s wlc", "-a -u 192.0.2.101:80 -r 10.0.0.101:80 -m -w 1", // what keepalived takes ICMP for
	},
}

// sampleMissing is the same of keepalived's own samples.
var sampleMissing = map[string][]string{
	"virtual_server_group": {"-a -t 192.168.200.1:1358 -r 192.168.200.1:1358 -m -w 1"},
}

// exceptions are what keepalived makes and services do not have; docs/moving.md lists them.
var exceptions = map[string]*regexp.Regexp{
	"firewall marks": regexp.MustCompile(`^-[Aa] -f .*`),
	"all ports":      regexp.MustCompile(`^-[Aa] -[tu] \S+:0 .*`),
	"granularity":    regexp.MustCompile(` -M \S+`),
}

// soak: all of them, each of which takes ten seconds in a guest; else always.
var (
	soak   = os.Getenv("SVCPROXY_SOAK") != ""
	always = []string{"web-dr", "group", "ipv6", "sample", "virtual_server_group"}
)

// Svcproxy makes of a converted configuration the virtual servers that keepalived makes of it. Neither
// asks endpoints: checks are taken out of both, so that all are up on both sides from the start.
func TestAsKeepalived(t *testing.T) {
	shell(t, "modprobe ip_vs")
	used := map[string]bool{}
	for name, missing := range realWorld {
		if !soak && !slices.Contains(always, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			ar, err := txtar.ParseFile("testdata/keepalived/" + name + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			asKeepalived(t, ar, missing, used)
		})
	}
	for name := range exceptions {
		if soak && !used[name] {
			t.Errorf("nothing has %s: the exception is not needed", name)
		}
	}
}

// The same holds for keepalived's own samples.
func TestSamplesAsKeepalived(t *testing.T) {
	shell(t, "modprobe ip_vs")
	for name, count := range samples {
		if count == 0 || !soak && !slices.Contains(always, name) {
			continue
		}
		text, err := os.ReadFile(samplesDir + "/keepalived.conf." + name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			asKeepalived(t, &txtar.Archive{Files: []txtar.File{{Name: "in", Data: text}}}, sampleMissing[name], map[string]bool{})
		})
	}
}

func asKeepalived(t *testing.T, ar *txtar.Archive, missing []string, used map[string]bool) {
	dir := t.TempDir()
	for _, f := range ar.Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, withoutChecks(f.Data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := except(keepalivedServers(t, dir), missing, used)
	if len(want) == 0 {
		t.Error("keepalived makes no virtual server that can be compared")
	}
	var diff string
	idle, stop := startSvcproxy(t, dir)
	defer stop()
	if !pace.Within(30*time.Second, func() bool {
		diff = cmp.Diff(want, slices.DeleteFunc(ipvsadm(t), idle))
		return diff == ""
	}) {
		t.Errorf("virtual servers (-keepalived +svcproxy):\n%s", diff)
	}
}

var checker = regexp.MustCompile(`^\s*[A-Z]+_(CHECK|GET)\b[^\\]*$`)

// withoutChecks returns a configuration without the checks of real servers, except for those in definitions.
func withoutChecks(text []byte) []byte {
	var out bytes.Buffer
	depth := 0
	for line := range bytes.Lines(text) {
		code, _, _ := bytes.Cut(line, []byte("#"))
		braces := bytes.Count(code, []byte("{")) - bytes.Count(code, []byte("}"))
		switch {
		case depth > 0:
			depth += braces
		case checker.Match(bytes.TrimRight(code, "\n")):
			depth = braces
		default:
			out.Write(line)
		}
	}
	return out.Bytes()
}

// keepalivedServers returns what keepalived makes of a configuration, and stops it.
func keepalivedServers(t *testing.T, dir string) []string {
	shell(t, "ipvsadm -C; ip link del svcproxy0 2>/dev/null || true")
	pid := func(name string) string { return filepath.Join(dir, name+".pid") }
	cmd := exec.CommandContext(t.Context(), "keepalived", "--dont-fork", "--log-console", "--check", "--config-id", "lb1",
		"--use-file", filepath.Join(dir, "in"), "--pid", pid("keepalived"), "--checkers_pid", pid("checkers"))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	servers, since := []string(nil), time.Now()
	pace.Within(20*time.Second, func() bool {
		if now := ipvsadm(t); !slices.Equal(now, servers) {
			servers, since = now, time.Now()
		}
		return len(servers) > 0 && pace.Over(since, time.Second)
	})
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if len(servers) == 0 {
		t.Logf("keepalived says:\n%s", log.String())
	}
	shell(t, "ipvsadm -C")
	return servers
}

// backup is an endpoint that stands for a sorry server.
var backup = regexp.MustCompile(`address = "([^"]+)", tier = 1`)

// isIdle returns what reports whether a line is of a sorry server that has no connections: keepalived
// adds one when it is used, svcproxy keeps it at weight 0 until then.
func isIdle(toml []byte) func(line string) bool {
	return func(line string) bool {
		return strings.HasSuffix(line, " -w 0") && slices.ContainsFunc(backup.FindAllSubmatch(toml, -1), func(m [][]byte) bool {
			return strings.Contains(line, " -r "+string(m[1])+":") || strings.Contains(line, " -r ["+string(m[1])+"]:")
		})
	}
}

// startSvcproxy starts the daemon in ipvs mode on what the configuration converts to.
func startSvcproxy(t *testing.T, dir string) (idle func(line string) bool, stop func()) {
	text, err := os.ReadFile(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := document(format(t, "keepalived"), reader.Input{Name: filepath.Join(dir, "in"), Data: text, ID: "lb1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	check := regexp.MustCompile(`(?m)^health_check = .*\n`) // of definitions
	if err := os.WriteFile(filepath.Join(dir, "etc", "converted.toml"), check.ReplaceAll(d.TOML, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log bytes.Buffer
	queue := journal.NewQueue(&log)
	go func() {
		ended <- daemon.Run(ctx, daemon.Options{
			ConfigDir: filepath.Join(dir, "etc"), StateDir: filepath.Join(dir, "lib"), RunDir: filepath.Join(dir, "run"),
			Namespace: fmt.Sprintf("svcproxy-convert-%d", os.Getpid()), Version: "test", Stderr: queue,
			Load: func(string) (configs.Settings, []source.Fault, error) {
				s := configs.Default()
				s.Mode, s.HTTPAddress = configs.IPVSMode.Name, ""
				return s, nil, nil
			},
			Notify: func(string) {},
		})
	}()
	return isIdle(d.TOML), func() {
		cancel()
		err := <-ended
		queue.Close()
		if err != nil || t.Failed() {
			t.Logf("svcproxy ended: %v\n%s\n%s", err, d.TOML, log.String())
		}
	}
}

// except takes away what services do not have: exceptions, and these lines, of which each has to be there.
func except(lines, missing []string, used map[string]bool) (out []string) {
	for _, line := range lines {
		for name, e := range exceptions {
			if short := e.ReplaceAllString(line, ""); short != line {
				line, used[name] = short, true
			}
		}
		if line != "" && !slices.Contains(missing, line) {
			out = append(out, line)
		}
	}
	for _, line := range missing {
		if !slices.Contains(lines, line) {
			out = append(out, "not made: "+line)
		}
	}
	slices.Sort(out)
	return out
}

// ipvsadm returns the virtual servers of the kernel, sorted.
func ipvsadm(t *testing.T) []string {
	lines := strings.Split(strings.TrimSpace(shell(t, "ipvsadm -Sn")), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	slices.Sort(lines)
	return lines
}

func shell(t *testing.T, script string) string {
	out, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}
