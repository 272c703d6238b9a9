package daemon

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) {
	statusInterval = time.Hour // tests that are about it set it
	goleak.VerifyTestMain(m)
}

// A kernel is a backend of all families that remembers what it was told of IPv4.
type kernel struct {
	mu    sync.Mutex
	names []string // of services, at the last sync
	cidrs string   // local_cidrs
	full  int      // syncs that were
	calls int      // of Sync and Look
	fail  error
	none  error // why it cannot be opened
}

func (k *kernel) open(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.none != nil {
		return nil, k.none
	}
	return k, nil
}

// set changes k while a daemon uses it.
func (k *kernel) set(change func(k *kernel)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

func (k *kernel) Sync(_ context.Context, st *policy.State, delta *policy.Delta) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	if k.fail != nil {
		return k.fail
	}
	if st.Family != policy.IPv4 {
		return nil
	}
	k.names = nil
	for key := range st.Services {
		k.names = append(k.names, key.String())
	}
	slices.Sort(k.names)
	k.cidrs = fmt.Sprint(st.Host.LocalCIDRs)
	if delta == nil {
		k.full++
	}
	return nil
}

func (k *kernel) Plan(context.Context, *policy.State) ([]proxier.Change, error) { return nil, nil }
func (k *kernel) Close() error                                                  { return nil }

func (k *kernel) Look(context.Context) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	return false, nil
}

func (k *kernel) Cleanup(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names = nil
	return nil
}

// seen returns a copy of what k holds.
func (k *kernel) seen() (names string, cidrs string, full int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.names, " "), k.cidrs, k.full
}

// A running daemon.
type running struct {
	t      *testing.T
	dir    string
	config string // of files, below dir
	kernel *kernel
	reload chan os.Signal
	load   func(path string) (configs.Settings, []source.Fault, error)
	log    *logged
	stderr io.Writer      // gets the log in place of it; nil: none does
	queue  *journal.Queue // before either
	told   *logged        // systemd
	stop   func() error
}

// logged is what the daemon writes, or tells systemd.
type logged = logtest.Text

const web = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ port = 80 }]
endpoints = []
`

// launch runs a daemon on a directory with these settings and one service file.
func launch(t *testing.T, settings string, more ...modes.Mode) *running {
	t.Helper()
	r := &running{
		t: t, dir: t.TempDir(), kernel: new(kernel), reload: make(chan os.Signal), load: configs.Load,
		log: new(logged), told: new(logged),
	}
	useModes(t, r.kernel, more...)
	r.write("svcproxy.toml", settings)
	r.write("web.toml", web)
	r.start()
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

func (r *running) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done, o := make(chan error, 1), r.options()
	go func() { done <- Run(ctx, o) }()
	r.queue = o.Stderr
	r.stop = sync.OnceValue(func() error {
		defer o.Stderr.Close()
		cancel()
		return <-done
	})
}

// useModes makes k the kernel of the only mode, or of the last, until the test ends.
func useModes(t *testing.T, k *kernel, more ...modes.Mode) {
	t.Helper()
	modestest.Use(t, append(more, modestest.Stub("iptables", k.open))...)
}

func (r *running) options() Options {
	stderr := r.stderr
	if stderr == nil {
		stderr = r.log
	}
	return Options{
		ConfigDir: filepath.Join(r.dir, r.config), StateDir: filepath.Join(r.dir, "state"), RunDir: filepath.Join(r.dir, "run"),
		Namespace: fmt.Sprintf("@svcproxy-test-%d-%x", os.Getpid(), crc32.ChecksumIEEE([]byte(r.dir))),
		Version:   "v1", Load: r.load, Reload: r.reload, Stderr: queued(r.t, stderr),
		Notify: func(s string) { fmt.Fprintln(r.told, strings.Split(s, "\n")[0]) },
		Watch:  100 * time.Millisecond,
	}
}

func (r *running) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) status() control.Status {
	r.t.Helper()
	st, err := r.ask()
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

// ask returns status, or why nobody tells it.
func (r *running) ask() (control.Status, error) {
	return control.NewClient(filepath.Join(r.dir, "run")).StatusOf(r.t.Context(), nil)
}

// eventually waits up to 30 s for ok.
func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	pace.UntilOr(r.t, ok, func() string { return fmt.Sprintf("%s; log:\n%s", what, r.log) })
}

// toldBut returns what systemd was told, without lines that begin with some words.
func (r *running) toldBut(words ...string) string {
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(r.told.String(), "\n"), func(line string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(line, w) })
	}), "")
}

func (r *running) ready() {
	r.t.Helper()
	r.eventually("ready", func() bool { return strings.Contains(r.told.String(), "READY=1") })
}

func TestRunServesUntilItEnds(t *testing.T) {
	r := launch(t, "http_address = \"\"\nnode_name = \"n\"\nzone = \"z\"\n")
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("kernel holds %q", names)
	}
	st := r.status()
	if !st.Ready || !st.Healthy || st.Version != "v1" || st.PID != os.Getpid() || len(st.Loop.Services) != 1 || st.Sources[0].Files[0].Services != 1 {
		t.Errorf("status %+v", st)
	}
	st.Settings.NodePortAddresses = nil // this host's
	want := control.Settings{ConfigDir: r.dir, Mode: "iptables", Families: []string{"ipv4", "ipv6"}, NodeName: "n", Zone: "z"}
	if diff := cmp.Diff(want, st.Settings); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	r.eventually("fed the watchdog", func() bool { return strings.Contains(r.told.String(), "WATCHDOG=1") })
	if err := Run(t.Context(), r.options()); err == nil || !strings.Contains(err.Error(), "another svcproxy (pid ") {
		t.Errorf("second daemon: %v", err)
	}
	begin := time.Now()
	if err := r.stop(); err != nil || pace.Over(begin, 10*time.Second) { // it is at once
		t.Errorf("stopped with %v after %v", err, time.Since(begin))
	}
	if !strings.HasSuffix(r.told.String(), "STOPPING=1\n") {
		t.Errorf("told systemd:\n%s", r.told)
	}
}

// A file that is broken when the daemon starts has the services it last had.
func TestRestartWithBrokenFile(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	fatal.If(t, r.stop())
	r.write("web.toml", "[[services]\n")
	r.kernel.names, r.told = nil, new(logged)
	r.start()
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("kernel holds %q", names)
	}
	r.eventually("stale", func() bool { return r.status().Sources[0].Files[0].State == source.Stale })
}

func TestSettingsAreFollowed(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	cidrs := func(want string) func() bool {
		return func() bool { _, got, _ := r.kernel.seen(); return got == want }
	}
	r.write("svcproxy.toml", "http_address = \"\"\nlocal_cidrs = [\"10.244.0.0/16\"]\n")
	r.eventually("new local_cidrs", cidrs("[10.244.0.0/16]"))

	r.write("svcproxy.toml", "http_address = \"\"\nlocal_cidrs = [\"10.244.0.0/99\"]\n")
	r.eventually("fault shown", func() bool { return len(r.status().Faults) == 1 })
	if f := r.status().Faults[0]; f.Pos.File != filepath.Join(r.dir, "svcproxy.toml") || f.Pos.Line != 2 {
		t.Errorf("fault %+v", f)
	}
	if !cidrs("[10.244.0.0/16]")() {
		t.Error("broken settings were used")
	}

	r.write("svcproxy.toml", "http_address = \"127.0.0.1:1\"\n[log]\nlevel = \"error\"\n")
	r.eventually("no local_cidrs", cidrs("[]"))
	st := r.status()
	if diff := cmp.Diff([]string{"http_address"}, st.Restart); diff != "" || len(st.Faults) != 0 {
		t.Errorf("faults %v; needs a restart (-want +got):\n%s", st.Faults, diff)
	}
	fatal.If(t, os.Remove(filepath.Join(r.dir, "svcproxy.toml")))
	r.eventually("defaults except for the address", func() bool { return slices.Equal(r.status().Restart, []string{"http_address"}) })
}

// The new mode holds everything before the former one lets go, and a mode that
// does not work changes nothing.
func TestModeChangeLeavesNoGap(t *testing.T) {
	next := &kernel{fail: errors.New("busy")}
	r := launch(t, "http_address = \"\"\nmode = \"iptables\"\n", modestest.Stub("nftables", modestest.Opens(next)), modestest.Stub("ipvs", modestest.Fails("no ip_vs")))
	r.ready()
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"nftables\"\n")
	r.eventually("tried", func() bool { return r.status().Loop.Families[0].Error != "" })
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("the former mode holds %q while the new one cannot", names)
	}
	next.mu.Lock()
	next.fail = nil
	next.mu.Unlock()
	r.eventually("moved", func() bool {
		former, _, _ := r.kernel.seen()
		names, _, _ := next.seen()
		return names == "default/web" && former == "" && r.status().Settings.Mode == "nftables"
	})
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	r.eventually("refused", func() bool { return strings.Contains(strings.Join(r.status().Warnings, " "), "no ip_vs") })
	if st := r.status(); st.Settings.Mode != "nftables" {
		t.Errorf("mode %q after one that does not work, want nftables", st.Settings.Mode)
	}
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"iptables\"\n")
	r.eventually("moved back", func() bool {
		back, _, _ := r.kernel.seen()
		names, _, _ := next.seen()
		return back == "default/web" && names == "" && len(r.status().Restart) == 0
	})
}

// A text that is only being written must not count, nor a file that is empty.
func TestSettingsBeingWrittenAreIgnored(t *testing.T) {
	r := launch(t, "http_address = \"\"\nlocal_cidrs = [\"10.1.0.0/16\"]\n")
	r.ready()
	r.write("svcproxy.toml", "")
	time.Sleep(3 * settings.Poll)
	if _, got, _ := r.kernel.seen(); got != "[10.1.0.0/16]" {
		t.Errorf("an empty file changed local_cidrs to %s", got)
	}
}

func TestFailingSyncIsShown(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	r.kernel.mu.Lock()
	r.kernel.fail = errors.New("no room")
	r.kernel.mu.Unlock()
	r.reload <- syscall.SIGHUP
	r.eventually("error in status", func() bool { return r.status().Loop.Families[0].Error != "" })
}

func TestStartErrors(t *testing.T) {
	fault := source.Fault{Pos: source.Position{File: "svcproxy.toml", Line: 1, Col: 8}, Msg: "bad"}
	tests := []struct {
		name   string
		mode   string
		faults []source.Fault
		want   string
	}{
		{"every fault", "auto", []source.Fault{fault, fault}, "svcproxy.toml:1:8: bad\nsvcproxy.toml:1:8: bad"},
		{"mode", "nftables", nil, `mode "nftables" is not in this build; set mode to "auto" or "iptables"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			useModes(t, new(kernel))
			err := Run(t.Context(), Options{
				ConfigDir: t.TempDir(), StateDir: t.TempDir(), RunDir: t.TempDir(), Stderr: queued(t, new(logged)),
				Load: func(string) (configs.Settings, []source.Fault, error) {
					s := configs.Default()
					s.Mode = tt.mode
					return s, tt.faults, nil
				},
			})
			if err == nil || err.Error() != tt.want {
				t.Errorf("Run: %v\nwant: %s", err, tt.want)
			}
		})
	}
}

// Two daemons, in network namespaces of their own, would remove each other's state.
func TestStateDirectoryClaimed(t *testing.T) {
	r := launch(t, "")
	r.ready()
	o := r.options()
	o.Namespace += "-other"
	o.RunDir = t.TempDir()
	want := fmt.Sprintf("claiming state directory %s: another svcproxy (pid %d) is running; give each its own --state-dir", o.StateDir, os.Getpid())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // or else it runs
	defer cancel()
	if err := Run(ctx, o); err == nil || err.Error() != want {
		t.Errorf("Run: %v\nwant: %s", err, want)
	}
	fatal.If(t, r.stop())
	r.start() // it is free again
	r.ready()
}

// One directory for all does no harm: the daemon does not meet itself.
func TestOneDirectoryForAllPurposes(t *testing.T) {
	dir := t.TempDir()
	state, err := control.ClaimState(dir)
	fatal.If(t, err)
	defer state.Close()
	server, err := control.Listen(dir)
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server.Serve(ctx, slog.New(slog.DiscardHandler), new(control.Routes))
}
