package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

const planned = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ name = "http", port = 80, target_port = 8080 }]
endpoints = ["192.168.10.11", "192.168.10.12"]
`

// Plan --against compares directories without root and without a daemon.
func TestPlanComparesDirectories(t *testing.T) {
	fewer := strings.Replace(planned, `, "192.168.10.12"`, "", 1)
	const shares = "[[owners]]\nfiles = [\"web*\"]\nusers = [\"4294967290\"]\naddresses = [\"10.96.1.0/24\"]\nnamespaces = [\"default\"]\n"
	const fault = "etc/b.toml:1:1: unknown key \"x\"; want defaults or services\n"
	for _, tt := range []struct {
		name     string
		old, now map[string]string
		args     []string
		code     int
		out, err string // of out, the first lines
	}{
		{
			name: "the same", old: map[string]string{"web.toml": planned}, now: map[string]string{"web.toml": "# a word\n" + planned},
			out: "nothing would change, compared with old (nftables mode)\n",
		},
		{
			name: "an endpoint goes", old: map[string]string{"web.toml": planned}, now: map[string]string{"web.toml": fewer}, code: 2,
			args: []string{"--mode", "iptables"},
			out: `1 service (change 1), 1 kernel object (change 1), compared with old (iptables mode)
SERVICES
~ default/web  endpoints removed: 192.168.10.12
CONNECTIONS
  default/web:http  established TCP connections to 192.168.10.12:8080 go on
KERNEL
  change iptables chain nat SVCP-SVC-`,
		},
		{
			name: "in ipvs mode", old: map[string]string{"web.toml": planned, "svcproxy.toml": "mode = \"ipvs\"\n"},
			now:  map[string]string{"web.toml": fewer, "svcproxy.toml": "mode = \"ipvs\"\n[ipvs]\ndrain_timeout = \"1m\"\n"},
			code: 2,
			out: `1 setting, 1 service (change 1), 1 kernel object (change 1), compared with old (ipvs mode)
SETTINGS
  ipvs.drain_timeout: "15m" -> "1m"
SERVICES
~ default/web  endpoints removed: 192.168.10.12
CONNECTIONS
  default/web:http  established TCP connections to 192.168.10.12:8080 go on for 1m at most
KERNEL
  change destination -a -t 10.96.0.10:80 -r 192.168.10.12:8080 -m -w 0
`,
		},
		{
			name: "a file outside of its share, which is judged by its name", code: 1,
			old: map[string]string{"web.toml": planned}, now: map[string]string{"web.toml": planned, "b.toml": strings.ReplaceAll(planned, "web", "b"), "svcproxy.toml": shares},
			out: "7 settings, ", err: "etc/b.toml: no [[owners]] in svcproxy.toml has a file of this name and of user UID, so it may claim nothing; write [[owners]] with \"b.toml\" in files\n" +
				"etc/web.toml:3:9: 10.96.0.10 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"10.96.1.0/24\"\n",
		},
		{
			name: "a router comes", old: map[string]string{"web.toml": planned, "svcproxy.toml": "[bgp]\nas = 64512\n[[bgp.peers]]\naddress = \"192.0.2.1\"\nas = 1\n"},
			now:  map[string]string{"web.toml": planned, "svcproxy.toml": "[bgp]\nas = 64512\n[[bgp.peers]]\naddress = \"192.0.2.1\"\nas = 2\n[[bgp.peers]]\naddress = \"192.0.2.2\"\nas = 3\n"},
			code: 2, args: []string{"--all"},
			out: "12 settings, 0 services, 0 kernel objects, compared with old (nftables mode)\nSETTINGS\n  bgp.peers[0].as: 1 -> 2\n  bgp.peers[1].address: \"192.0.2.2\"\n  bgp.peers[1].as: 3\n",
		},
		{
			name: "a router goes", old: map[string]string{"web.toml": planned, "svcproxy.toml": "[bgp]\nas = 64512\n[[bgp.peers]]\naddress = \"192.0.2.1\"\nas = 1\n"},
			now: map[string]string{"web.toml": planned}, code: 2, args: []string{"--all"},
			out: "12 settings, 0 services, 0 kernel objects, compared with old (nftables mode)\nSETTINGS\n  bgp.as: 64512 -> 0\n  bgp.peers[0].address: \"192.0.2.1\" -> none\n",
		},
		{
			name: "a file goes", old: map[string]string{"web.toml": planned}, code: 2,
			out: "1 service (remove 1), ",
		},
		{
			name: "a fault", old: map[string]string{"web.toml": planned}, now: map[string]string{"web.toml": fewer, "b.toml": "x = 1\nservices = []\n"},
			code: 1, err: fault, out: "1 service (change 1), ",
		},
		{
			name: "a broken file keeps what it said", old: map[string]string{"b.toml": planned}, now: map[string]string{"b.toml": "x = 1\n" + fewer},
			code: 1, err: fault, out: "nothing would change, ",
		},
		{
			name: "no directory", now: map[string]string{"web.toml": planned}, args: []string{"--against", "nowhere"}, code: 3,
			err: "nowhere: cannot be read: no such file or directory\n", out: "what would change is not known\n",
		},
		{name: "wrong usage", args: []string{"--nothing"}, code: 2, err: "svcproxy: unknown flag: --nothing\nRun 'svcproxy --help' for usage.\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := etc(t, tt.now)
			t.Chdir(dir)
			fatal.If(t, os.Mkdir("old", 0o755))
			for name, text := range tt.old {
				fatal.If(t, os.WriteFile(filepath.Join("old", name), []byte(text), 0o644))
			}
			code, out, stderr := call(t, dir, append([]string{"plan", "--against", "old"}, tt.args...)...)
			if code != tt.code || !strings.HasPrefix(out, tt.out) || stderr != strings.ReplaceAll(tt.err, "UID", strconv.Itoa(os.Getuid())) {
				t.Errorf("exit %d\n%s%s\nwant %d\n%s%s", code, out, stderr, tt.code, tt.out, tt.err)
			}
			if (out == "") != (tt.name == "wrong usage") {
				t.Errorf("standard output: %q", out)
			}
		})
	}
}

// Without a daemon and without rights, plan says what it lacks.
func TestPlanWithoutDaemon(t *testing.T) {
	if mayAdminister("plan") == nil {
		return // as root it works
	}
	code, out, stderr := call(t, etc(t, nil), "plan")
	if code != exitUnreachable || out != "" || !strings.Contains(stderr, "--against needs neither") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
}

func TestPlanAsJSON(t *testing.T) {
	dir := etc(t, map[string]string{"web.toml": planned})
	t.Chdir(dir)
	fatal.If(t, os.Mkdir("old", 0o755))
	code, out, _ := call(t, dir, "plan", "--against", "old", "--json", "--mode", "ipvs", "--families", "ipv4")
	var got struct {
		Services []struct{ Name, Op string }
		Objects  []struct{ Family, Op, Object string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitChanges {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if len(got.Services) != 1 || got.Services[0].Name != "default/web" || got.Services[0].Op != "add" {
		t.Errorf("services: %v", got.Services)
	}
	if len(got.Objects) < 4 || got.Objects[0].Object != "virtual server -A -t 10.96.0.10:80 -s wrr" || got.Objects[0].Family != "ipv4" {
		t.Errorf("objects: %v", got.Objects)
	}
}
