package check_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/filetest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// service returns a file of one service with one port of one VIP.
func service(name, vip string) string {
	return "[[services]]\nname = \"" + name + "\"\nvips = [\"" + vip + "\"]\nports = [{ port = 80 }]\nendpoints = [\"192.0.2.1\"]\n"
}

// sticky returns a file of one service with affinity and n endpoints.
func sticky(name string, n int) string {
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("%q", netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})))
	}
	return "[[services]]\nname = \"" + name + "\"\nvips = [\"10.96.1." + fmt.Sprint(name[0]) + "\"]\nports = [{ port = 80 }]\n" +
		"session_affinity = \"client_ip\"\nendpoints = [" + strings.Join(endpoints, ", ") + "]\n"
}

// checker returns a Checker of a host in iptables mode.
func checker(dir, stdin string) *check.Checker {
	return &check.Checker{
		ConfigDir: dir, Stdin: strings.NewReader(stdin), Load: configs.Load,
		Rules: func(s configs.Settings) read.Rules { s.Mode = "iptables"; return sources.Rules(s) },
	}
}

func TestFaultsOfPaths(t *testing.T) {
	const broken = "[[services]]\nname = \"b\"\nvips = [\"10.96.0.9\"]\nports = [{ port = 80 }]\nprot = 1\n"
	tests := []struct {
		name  string
		files map[string]string
		path  string // below the config directory; ../ is outside of it
		stdin string
		want  []string
	}{
		{"good directory", map[string]string{"a.toml": service("a", "10.96.0.1")}, ".", "", nil},
		{"every file and the settings", map[string]string{
			"svcproxy.toml": "zone = 1\n", "a.toml": broken, "b.toml": "x",
		}, ".", "", []string{
			`svcproxy.toml:1:8: `,
			`a.toml:5:1: `, `b.toml:1:1: `,
		}},
		{"clash in a directory", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": service("b", "10.96.0.1"),
		}, ".", "", []string{`b.toml:3:9: service "default/b": 10.96.0.1:80/tcp is taken by "default/a" (`}},
		{"a member that comes last", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": service("b", "10.96.0.1"),
		}, "a.toml", "", []string{`a.toml:3:9: service "default/a": 10.96.0.1:80/tcp is taken by "default/b" (`}},
		{"a member among faults of others", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": broken,
		}, "a.toml", "", nil},
		{"another file", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "../b.txt": service("b", "10.96.0.1"),
		}, "../b.txt", "", nil},
		{"settings alone", map[string]string{"svcproxy.toml": "zones = \"x\"\n", "a.toml": broken}, "svcproxy.toml", "",
			[]string{`svcproxy.toml:1:1: unknown key "zones"`}},
		{"a file of the mode", map[string]string{"../b.txt": service("b", "10.96.0.1") + "scheduler = \"rr\"\n"}, "../b.txt", "", []string{
			`6:13: scheduler is for ipvs mode, and this is iptables mode; leave it out`}},
		{"a mode that nobody knows", map[string]string{
			"svcproxy.toml": "mode = \"x\"\n", "a.toml": service("a", "10.96.0.1") + "scheduler = \"rr\"\n",
		}, "a.toml", "", nil},
		{"limits", map[string]string{
			"svcproxy.toml": "[limits]\nservices = 1\n", "a.toml": service("a", "10.96.0.1") + service("b", "10.96.0.2"),
		}, ".", "", []string{`a.toml:1:1: services has 2 elements, more than 1; split the file, or raise services in [limits] of svcproxy.toml`}},
		{"a file in a directory that cannot be read", map[string]string{"a.toml": "->nowhere"}, ".", "",
			[]string{`a.toml: cannot be read: no such file or directory`}},
		{"standard input", map[string]string{"svcproxy.toml": "made = 1\n", "a.toml": broken}, "-", service("a", "10.96.0.1"), nil},
		{"standard input in JSON", nil, "-", "\ufeff\n {\"services\": [{}]}", []string{
			`<stdin>:2:16: key "name" is missing`, `<stdin>:2:16: key "ports" is missing`}},
		{"nothing on standard input", nil, "-", "", []string{`<stdin>: the file is empty; write services = []`}},
		{"too much on standard input", map[string]string{"svcproxy.toml": "limits.file_size = 10\n"}, "-", "#          ", []string{
			`<stdin>: the file has more than 10 bytes; split it, or raise file_size in [limits] of svcproxy.toml`}},
		{"standard input comes last", map[string]string{"z.toml": service("a", "10.96.0.1")}, "-", service("a", "10.96.0.2"), []string{
			`<stdin>:2:8: service "default/a" is already defined (`}},
		{"node port over files", map[string]string{
			"a.toml": strings.Replace(service("a", "10.96.0.1"), "port = 80", "port = 80, node_port = 30080", 1),
			"b.toml": strings.Replace(service("b", "10.96.0.2"), "port = 80", "port = 80, node_port = 30080", 1),
		}, ".", "", []string{`b.toml:4:35: service "default/b": node port 30080/tcp is taken by "default/a" (`}},
		{"another service as endpoint", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": strings.Replace(service("b", "10.96.0.2"), "192.0.2.1", "10.96.0.1", 1),
		}, ".", "", []string{`b.toml:1:1: warning: service "default/b": endpoint 10.96.0.1:80/tcp is service "default/a" (`}},
		{"another service as endpoint, of a file that comes last", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": strings.Replace(service("b", "10.96.0.2"), "192.0.2.1", "10.96.0.1", 1),
		}, "-", strings.Replace(service("c", "10.96.0.3"), "192.0.2.1", "10.96.0.2", 1), []string{`<stdin>:1:1: warning: service "default/c": endpoint 10.96.0.2:80/tcp is service "default/b" (`}},
		{"too much affinity together", map[string]string{
			"svcproxy.toml": "mode = \"iptables\"\n", "a.toml": sticky("a", 600), "b.toml": sticky("b", 401),
		}, ".", "", []string{`: warning: session affinity for 1001 endpoints and ports in iptables mode: `}},
		{"far too much affinity together", map[string]string{
			"svcproxy.toml": "mode = \"iptables\"\n", "a.toml": sticky("a", 6000), "b.toml": sticky("b", 4001),
		}, ".", "", []string{`: session affinity for 10001 endpoints and ports of all services is more than iptables mode can have, 10000; leave it out of some, or use nftables mode`}},
		{"too much affinity of one service", map[string]string{
			"svcproxy.toml": "mode = \"iptables\"\nlimits.endpoints = 20000\n", "a.toml": sticky("a", 10001), "b.toml": service("b", "10.96.0.1"),
		}, "a.toml", "", []string{`a.toml:5:20: session affinity for 10001 endpoints and ports is more than iptables mode can have, 10000; leave it out, or use nftables mode`}},
		{"affinity in another mode", map[string]string{"svcproxy.toml": "mode = \"nftables\"\n", "a.toml": sticky("a", 1001)}, ".", "", nil},
		{"our own port", map[string]string{
			"svcproxy.toml": "http_address = \":8080\"\n",
			"a.toml":        strings.Replace(service("a", "10.96.0.1"), "port = 80", "port = 80, node_port = 8080", 1),
		}, "a.toml", "", []string{`a.toml:4:35: service "default/a": port 8080/tcp is the one svcproxy itself listens on`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etc")
			fatal.If(t, os.Mkdir(dir, 0o755))
			for name, text := range tt.files {
				fatal.If(t, place(filepath.Join(dir, name), text))
			}
			path := filepath.Join(dir, tt.path)
			if tt.path == check.Stdin {
				path = tt.path
			}
			r := checker(dir, tt.stdin).Path(path)
			compare(t, dir, tt.want, r.Faults)
			if unreadable := strings.Contains(strings.Join(tt.want, ""), "cannot be read"); r.Unreadable != unreadable {
				t.Errorf("Unreadable is %v", r.Unreadable)
			}
		})
	}
}

// Files of the configuration directory have the share of their name and user, others that of their name.
func TestOwners(t *testing.T) {
	me := fmt.Sprint(os.Getuid())
	const (
		owner    = "[[owners]]\nnamespaces = [\"default\"]\nfiles = [%q]\nusers = [%q]\naddresses = [%q]\n"
		outside  = "%s:3:9: 10.96.0.1 is outside of addresses of owners[%d] in svcproxy.toml; want an address of %q"
		unnamed  = "<stdin>: warning: shares of [[owners]] are not checked, for a text has no name and no owner; check it as a file of the name that it will have"
		nobody   = "4294967290"
		mismatch = "%s: no [[owners]] in svcproxy.toml has a file of this name and of user "
	)
	settings := fmt.Sprintf(owner, "team-a-*.toml", me, "10.96.1.0/24") + fmt.Sprintf(owner, "team-b-*.toml", nobody, "10.96.2.0/24") + fmt.Sprintf(owner, "team-a-*.toml", nobody, "10.96.0.0/24")
	for _, tt := range []struct{ name, path, want string }{
		{"in its place", "team-a-x.toml", fmt.Sprintf(outside, "etc/team-a-x.toml", 0, "10.96.1.0/24")},
		{"of another user", "team-b-x.toml", fmt.Sprintf(mismatch, "etc/team-b-x.toml")},
		{"of another name", "x.toml", fmt.Sprintf(mismatch, "etc/x.toml")},
		{"elsewhere, by name and user", "../team-a-x.toml", fmt.Sprintf(outside, "team-a-x.toml", 0, "10.96.1.0/24")},
		{"elsewhere, by name", "../team-b-x.toml", fmt.Sprintf(outside, "team-b-x.toml", 1, "10.96.2.0/24")},
		{"elsewhere, of another name", "../x.toml", fmt.Sprintf(mismatch, "x.toml")},
		{"a directory elsewhere, by name", "../repo", fmt.Sprintf(outside, "repo/team-b-x.toml", 1, "10.96.2.0/24")},
		{"standard input", "-", unnamed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir, text := filepath.Join(root, "etc"), service("a", "10.96.0.1")
			path := filepath.Join(dir, tt.path)
			files := map[string]string{filepath.Join(dir, read.SettingsName): settings}
			switch {
			case tt.path == check.Stdin:
				path = tt.path
			case filepath.Base(path) == "repo":
				files[filepath.Join(path, read.SettingsName)], files[filepath.Join(path, "team-b-x.toml")] = settings, text
			default:
				files[path] = text
			}
			for path, text := range files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			faults := checker(dir, text).Path(path).Faults
			if len(faults) != 1 || !strings.HasPrefix(strings.TrimPrefix(faults[0].String(), root+"/"), tt.want) {
				t.Errorf("faults %v\nwant %s", faults, tt.want)
			}
		})
	}
}

// place makes a file or, of "->target", a link.
func place(path, text string) error {
	if target, ok := strings.CutPrefix(text, "->"); ok {
		return os.Symlink(target, path)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// compare wants one fault for each beginning of a line.
func compare(t *testing.T, dir string, want []string, faults []source.Fault) {
	t.Helper()
	var got []string
	for i, f := range faults {
		line := strings.TrimPrefix(strings.TrimPrefix(f.String(), dir+"/"), dir)
		line = strings.TrimPrefix(line, filepath.Dir(dir)+"/b.txt:")
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			line = want[i]
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestUnreadableFileIsAFault(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "none.toml"), dir + "/none/x"} {
		r := checker(dir, "").Path(path)
		want := []source.Fault{{Pos: source.Position{File: path}, Msg: "cannot be read: no such file or directory"}}
		if diff := cmp.Diff(check.Report{Faults: want, Unreadable: true}, r); diff != "" {
			t.Errorf("Path(%s) (-want +got):\n%s", path, diff)
		}
	}
}

// Standard input needs no configuration directory, but says what it could not compare with.
func TestStandardInputWithoutDirectory(t *testing.T) {
	dir := t.TempDir()
	if r := checker(dir+"/none", service("a", "10.96.0.1")).Path(check.Stdin); r.Unreadable || r.Faults != nil {
		t.Errorf("without a directory: %+v", r)
	}
	fatal.If(t, os.WriteFile(dir+"/file", nil, 0o600))
	r := checker(dir+"/file", service("a", "10.96.0.1")).Path(check.Stdin)
	compare(t, dir, []string{"file/svcproxy.toml: cannot be read: not a directory", "file: cannot be read: not a directory"}, r.Faults)
	if !r.Unreadable {
		t.Error("Unreadable is false")
	}
}

// Text gives the lines of what was checked, of standard input too.
func TestTextPrintsEveryResult(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.toml")
	fatal.If(t, os.WriteFile(path, []byte("\ufeffx"), 0o600))
	c := checker(dir, "\ufeffy")
	faults := append(c.Path(path).Faults, c.Path(check.Stdin).Faults...)
	for i, want := range []string{"    x\n    ^\n", "    y\n    ^\n"} {
		if got := check.Excerpt(c.Text(faults[i].Pos.File), faults[i].Pos); got != want {
			t.Errorf("%s\n got: %q\nwant: %q", faults[i], got, want)
		}
	}
	fatal.If(t, os.Symlink(path, dir+"/link"))
	if text := c.Text(dir + "/link"); string(text) != "x" {
		t.Errorf("text of a link of the same owner: %q", text)
	}
	if os.Geteuid() == 0 {
		fatal.If(t, os.Lchown(dir+"/link", 65534, 0))
		if text := c.Text(dir + "/link"); text != nil {
			t.Errorf("text of a link of another owner: %q", text)
		}
	}
	if text := c.Text(dir + "/none"); text != nil {
		t.Errorf("text of no file: %q", text)
	}
}

// What was accepted first stays whose it is, as the daemon has it: the state
// directory says so, also of a file that is broken now, and however a path is given.
func TestClaimsStayWithTheFileAcceptedFirst(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	put("b.toml", service("b", "10.96.0.1"))
	fatal.If(t, filetest.Accept(t.Context(), dir, state))
	put("a.toml", service("a", "10.96.0.1"))
	t.Chdir(dir)
	for _, text := range []string{service("b", "10.96.0.1"), "broken\n"} {
		put("b.toml", text)
		for path, want := range map[string]string{dir: "a.toml:", dir + "/a.toml": "a.toml:", "a.toml": "a.toml:", "b.toml": ""} {
			c := checker(dir, "")
			c.StateDir = state
			var taken []string
			for _, f := range c.Path(path).Faults {
				if strings.Contains(f.Msg, "is taken by") {
					taken = append(taken, filepath.Base(f.Pos.File)+":")
				}
			}
			if got := strings.Join(taken, " "); got != want {
				t.Errorf("%s blames %q, want %q", path, got, want)
			}
		}
	}
}

// What this host listens on counts for files of the configuration directory only.
func TestListenersCountForTheConfigurationDirectoryOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc")
	fatal.If(t, os.Mkdir(dir, 0o755))
	for _, name := range []string{"a.toml", "../b.txt"} {
		fatal.If(t, place(filepath.Join(dir, name), strings.Replace(service("a", "192.0.2.9"), "port = 80", "port = 22", 1)))
	}
	c := checker(dir, "")
	c.Host = func(configs.Settings) (around report.Snapshot) {
		around.Node, around.Families = &policy.Node{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}, []policy.Family{policy.IPv4}
		around.Listening = func() []report.Listener {
			return []report.Listener{{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("0.0.0.0:22")}}
		}
		return around
	}
	const want = `a.toml:3:9: warning: service "default/a": a process of this host listens on 0.0.0.0:22/tcp, and becomes unreachable at 192.0.2.9:22/tcp; your sshd becomes unreachable here`
	compare(t, dir, []string{want}, c.Path(dir).Faults)
	compare(t, dir, []string{want}, c.Path(dir+"/a.toml").Faults)
	compare(t, dir, nil, c.Path(filepath.Join(dir, "../b.txt")).Faults)
}

// A directory in the place of a file that was accepted is a fault, as the daemon has it; any other is passed over.
func TestDirectoryInPlaceOfFile(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	fatal.If(t, place(filepath.Join(dir, "a.toml"), service("a", "10.96.0.1")))
	fatal.If(t, filetest.Accept(t.Context(), dir, state))
	for _, name := range []string{"a.toml", "svcproxy.toml", "other.toml"} {
		_ = os.Remove(filepath.Join(dir, name))
		fatal.If(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	c := checker(dir, "")
	c.StateDir = state
	const settings, a = "svcproxy.toml: cannot be read: it is a directory; put a file in its place", "a.toml: cannot be read: it is a directory; put a file in its place"
	compare(t, dir, []string{settings, a, "other.toml: warning: this directory is not read; service files lie in the configuration directory itself"}, c.Path(dir).Faults)
	compare(t, dir, []string{settings, a}, c.Path(filepath.Join(dir, "a.toml")).Faults)
	compare(t, dir, []string{settings}, c.Path(filepath.Join(dir, "svcproxy.toml")).Faults)
}
