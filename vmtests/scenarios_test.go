//go:build vm

package vmtests

import (
	"cmp"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/vmtests/guest"
)

// systemModes are the settings of mode under which a whole system is tried; auto is nftables here.
var systemModes = []string{"auto", "ipvs"}

// A step is one thing that happens to the site, which goes on to the next.
type step struct {
	name string
	run  func(s *site, t *testing.T)
}

var steps = []step{
	{"boot", (*site).testBoot},
	{"hardened unit", (*site).testUnit},
	{"edit", (*site).testEdit},
	{"restart, kill and reload under traffic", (*site).testTrafficGoesOn},
	{"drain under held connections", (*site).testDrain},
	{"watchdog", (*site).testWatchdog},
	{"no faults in the log", (*site).testLog},
	{"stop and cleanup", (*site).testStop},
}

// modelessSteps are the same in every mode, and are taken in one.
var modelessSteps = []step{
	{"groups of the control socket", (*site).testGroups},
	{"programs of health checks", (*site).testPrograms},
	{"power cut, and a broken file at boot", (*site).testBrokenFile},
}

func TestSystem(t *testing.T) {
	for _, mode := range systemModes {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t, mode, func(c *guest.Config) { c.Disk = disk(t) })
			begin(t, s.backend, "serving", "peer", "serve", "one", "192.168.7.3:8080", "[fd07::3]:8080")
			begin(t, s.backend, "serving", "peer", "serve", "two", "192.168.7.4:8080", "[fd07::4]:8080")
			if mode == "auto" {
				s.takeSteps(t, slices.Concat(steps, modelessSteps, packageSteps())...)
				return
			}
			s.takeSteps(t, steps...)
		})
	}
}

func (s *site) takeSteps(t *testing.T, steps ...step) {
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(s, t) }) {
			t.Log(s.journal(t))
			break // the next would fail for the same reason
		}
	}
}

// emulation is how many times as long as on a host things may take in a guest.
func emulation() time.Duration {
	if cmp.Or(os.Getenv(guest.EnvAccel), "tcg") == "tcg" {
		return 5
	}
	return 1
}

// must runs a command on node, which must succeed.
func (s *site) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.node.Output(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func (s *site) journal(t *testing.T) string {
	t.Helper()
	out, err := s.node.Output(t.Context(), "journalctl", "-u", "svcproxy", "--no-pager")
	if err != nil {
		return err.Error()
	}
	return out
}

// property returns a property of the unit.
func (s *site) property(t *testing.T, name string) string {
	t.Helper()
	return s.must(t, "systemctl", "show", "--value", "-p", name, "svcproxy")
}

// eventually polls until check holds.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	if !pace.Within(patience, func() bool { time.Sleep(100 * time.Millisecond); return check() }) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

func (s *site) active(t *testing.T) {
	t.Helper()
	eventually(t, "the unit is active", func() bool { return s.property(t, "ActiveState") == "active" })
}

// reaches checks that the client reaches exactly these servers at each address.
func (s *site) reaches(t *testing.T, servers ...string) {
	t.Helper()
	out, err := s.client.Output(t.Context(), "peer", "ask", "24", vip4, vip6)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{vip4, vip6} {
		var seen []string
		for line := range strings.Lines(out) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), addr+" "); ok && !slices.Contains(seen, name) {
				seen = append(seen, name)
			}
		}
		if slices.Sort(seen); !slices.Equal(seen, servers) {
			t.Fatalf("%s is answered by %q, want %q", addr, seen, servers)
		}
	}
}

// testBoot: the unit says that it is ready after its first sync, so what is active serves.
func (s *site) testBoot(t *testing.T) {
	if state, err := s.node.Output(t.Context(), "systemctl", "is-system-running", "--wait"); err != nil {
		t.Fatalf("%s: %v\n%s", state, err, s.must(t, "systemctl", "--no-pager", "--failed"))
	}
	if state := s.property(t, "ActiveState"); state != "active" {
		t.Fatalf("the unit is %s", state)
	}
	s.reaches(t, "one", "two")
	t.Log(s.must(t, "systemd-analyze", "time"))
}

// testUnit: everything else shows that the unit has the rights it needs; here, that it has no others.
func (s *site) testUnit(t *testing.T) {
	s.must(t, "systemd-analyze", "security", "--no-pager", "--threshold=26", "svcproxy.service")
	status := s.must(t, "cat", "/proc/"+s.property(t, "MainPID")+"/status")
	for _, want := range []string{
		"CapEff:\t00000000000034e0", // CAP_KILL 5, CAP_SETGID 6, CAP_SETUID 7, CAP_NET_BIND_SERVICE 10, CAP_NET_ADMIN 12, CAP_NET_RAW 13
		"CapBnd:\t00000000000034e0",
		"NoNewPrivs:\t1",
		"Seccomp:\t2", // a filter
	} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("the daemon's status lacks %q:\n%s", want, status)
		}
	}
}

// followTime is promised of an edit: from the file to the packets.
const followTime = time.Second

// testEdit measures on node itself, in one process, from the rename of a file to
// the answer of the new endpoint. In emulation it may take five times as long.
func (s *site) testEdit(t *testing.T) {
	var took []time.Duration
	for i := range 6 {
		name, endpoints := "one", webWith("192.168.7.3", "fd07::3")
		if i%2 > 0 {
			name, endpoints = "two", webWith("192.168.7.4", "fd07::4")
		}
		d := s.follow(t, endpoints, name)
		if i > 0 { // the first takes endpoints away, which waits for the file to be quiet
			took = append(took, d)
		}
	}
	slices.Sort(took)
	if limit := emulation() * followTime; took[len(took)-1] > limit {
		t.Errorf("edits were followed after %v, want at most %v", took, limit)
	}
	t.Logf("edits were followed after %v", took)
	s.follow(t, string(bothBackends), "one")
	s.reaches(t, "one", "two")
}

// follow edits web.toml and returns how long it takes until a server answers.
func (s *site) follow(t *testing.T, text, name string) time.Duration {
	t.Helper()
	var out strings.Builder
	code, err := s.node.Run(t.Context(), guest.Command{
		Args: []string{"peer", "follow", "/etc/svcproxy/web.toml", vip4, name}, Input: []byte(text),
	}, &out)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s", code, err, out.String())
	}
	d, err := time.ParseDuration(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// testTrafficGoesOn: the packets do not pass through the daemon.
func (s *site) testTrafficGoesOn(t *testing.T) {
	stream := begin(t, s.client, "streaming", "peer", "stream", vip4, vip6)
	s.must(t, "systemctl", "restart", "svcproxy")
	s.must(t, "systemctl", "kill", "-s", "KILL", "svcproxy")
	eventually(t, "systemd starts it again", func() bool { return s.property(t, "NRestarts") == "1" })
	s.active(t)
	s.must(t, "systemctl", "reload", "svcproxy")
	s.must(t, "systemctl", "stop", "svcproxy")
	time.Sleep(time.Second) // of traffic without a daemon
	s.must(t, "systemctl", "start", "svcproxy")
	judge(t, stream.end())
}

// judge reads the report of a stream.
func judge(t *testing.T, output string) {
	t.Helper()
	r := readReport(t, output, "streaming")
	if len(r.Lost) > 0 || r.Echoes < 100 || r.New < 100 {
		t.Errorf("%d echoes, %d new connections, lost: %q", r.Echoes, r.New, r.Lost)
	}
	t.Logf("%d echoes on old connections, %d new ones, %d more after a second and more", r.Echoes, r.New, r.Late)
}

// A report is what a peer says of its connections.
type report struct {
	Echoes, New, Late int
	Lost              []string
}

// readReport reads what follows a peer's sign that it has begun.
func readReport(t *testing.T, output, sign string) (r report) {
	t.Helper()
	_, text, _ := strings.Cut(output, sign+"\n")
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %q", err, output)
	}
	return r
}

// testWatchdog waits for the daemon to feed it, as it does every 15 s.
func (s *site) testWatchdog(t *testing.T) {
	pid, fed := s.property(t, "MainPID"), s.property(t, "WatchdogTimestampMonotonic")
	eventually(t, "the watchdog is fed", func() bool { return s.property(t, "WatchdogTimestampMonotonic") != fed })
	if got := s.property(t, "MainPID"); got != pid {
		t.Errorf("the daemon was started again: process %s, before %s", got, pid)
	}
}

// faultWords are of errors, and of calls that the unit's restrictions refuse.
var faultWords = regexp.MustCompile(`(?i)level=ERROR|level=WARN|denied|not permitted|read-only file system|panic:|bad system call`)

// slowWords are of warnings that something takes longer than two seconds, as it may in a guest.
var slowWords = regexp.MustCompile(`msg="no progress; waiting"|msg="ipv[46] is not in use yet: `)

func (s *site) testLog(t *testing.T) {
	for line := range strings.Lines(s.journal(t)) {
		if faultWords.MatchString(line) && !slowWords.MatchString(line) {
			t.Error(line)
		}
	}
}

// ownObjects prints what svcproxy has in the kernel, in any mode.
const ownObjects = "{ nft list ruleset; iptables-save; ip6tables-save; iptables-legacy-save; ip6tables-legacy-save; ipset list -name; ip -o link; ipvsadm -Sn; } 2>/dev/null | grep -i -e svcproxy -e SVCP- -e 10.96.0.10"

// testStop: a stopped daemon leaves its services, and cleanup leaves nothing.
func (s *site) testStop(t *testing.T) {
	s.must(t, "systemctl", "stop", "svcproxy")
	s.reaches(t, "one", "two")
	s.must(t, "sh", "-c", ownObjects)
	s.must(t, "svcproxy", "cleanup")
	if left := s.must(t, "sh", "-c", ownObjects+" || true"); left != "" {
		t.Errorf("cleanup left\n%s", left)
	}
}

// testBrokenFile: after a power cut, with a file that cannot be read, its last good version serves.
func (s *site) testBrokenFile(t *testing.T) {
	s.powerCut(t,
		guest.File{Path: "/etc/svcproxy/web.toml", Mode: 0o644, Data: []byte("[[services]]\nname = \"web\nvips")},
		guest.File{Path: "/etc/svcproxy/other.toml", Mode: 0o644, Data: []byte("[[services]]\nname = \"other\"\nvips = [\"10.96.0.11\"]\nports = [{ port = 80, target_port = 8080 }]\nendpoints = [\"192.168.7.4\"]\n")})
	s.active(t)
	s.reaches(t, "one", "two")
	if out, err := s.client.Output(t.Context(), "peer", "ask", "1", "10.96.0.11:80"); err != nil || out != "10.96.0.11:80 two\n" {
		t.Errorf("the other file's service: %q, %v", out, err)
	}
	if status := s.must(t, "svcproxy", "status"); !regexp.MustCompile(`web\.toml.*stale`).MatchString(status) {
		t.Errorf("status does not say that web.toml is stale:\n%s", status)
	}
}

// A kernel may lack the module of a mode. auto goes on to the next mode and says
// why; a mode that is asked for by name then fails, and says so.
func TestMissingModule(t *testing.T) {
	tests := []struct {
		name    string
		missing string // names of modules
		auto    string // a pattern of the log
		named   string // the mode that is asked for
		fails   string // a pattern of the log then
	}{
		{"nf_tables and ip_vs", "nf_tables ip_vs", `mode=iptables why=.*nf_tables`, "ipvs", `ipvs mode: .*IPVS`},
		{"nf_tables", "nf_tables", `mode=ipvs why=.*nf_tables`, "nftables", `nftables mode: .*nf_tables`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s site
			cfg := s.nodeConfig(t, "auto")
			cfg.Networks = nil
			cfg.Setup = "for m in " + tt.missing + "; do rm $(modinfo -n $m); done\nip link set lo up\nsystemctl enable svcproxy\n"
			var err error
			if s.node, err = guest.Boot(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.node.Close() })
			s.logs(t, tt.auto)
			s.active(t)
			s.must(t, "sh", "-ec", "echo 'mode = \""+tt.named+"\"' >/etc/svcproxy/svcproxy.toml; systemctl restart --no-block svcproxy")
			s.logs(t, tt.fails)
			eventually(t, "the daemon ends with code 1", func() bool { return s.property(t, "ExecMainStatus") == "1" })
		})
	}
}

// logs waits until the unit's log matches a pattern.
func (s *site) logs(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	eventually(t, "the log says "+pattern, func() bool { return re.MatchString(s.journal(t)) })
}
