package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
)

// Patience of a Daemon: five times what is expected, and more for the start,
// which a race detector and two busy cores make slow.
var (
	startPatience = Slow(20 * time.Second)
	applyPatience = Slow(5 * time.Second) // a change is in the kernel within 1 s

	// SIGTERM stops within 1 s. But the end of a process that watches files waits
	// for a grace period of the kernel, fsnotify_destroy_group, and that has been
	// seen to last 15 s while many namespaces were removed.
	stopPatience = Slow(30 * time.Second)
)

// A Daemon is svcproxy on a host of a lab, with directories of its own.
type Daemon struct {
	Dir   string // holds config, state and run, and the log
	Steps bool   // a sync is many steps: some of it is there before the rest

	Mounts  bool               // it has mounts of its own, which end with it
	Env     []string           // variables that it has besides
	Process *netnstest.Process // nil: it does not run

	host    *Host
	near    Dual // where an endpoint answers
	binary  string
	applied uint16 // how many files Apply has written
}

// NewDaemon prepares svcproxy on the node of l, without starting it.
func NewDaemon(l *Lab, binary string) (*Daemon, error) {
	return NewDaemonOn(l.Node, l.Local[0].Addr(), binary)
}

// NewDaemonOn prepares svcproxy on a host, without starting it. Files are known to be
// in the kernel when a service answers that has an endpoint at near, port EndpointPorts[0].
func NewDaemonOn(host *Host, near Dual, binary string) (*Daemon, error) {
	dir, err := netnstest.TempDir()
	if err != nil {
		return nil, fmt.Errorf("making the directories of svcproxy: %w", err)
	}
	d := &Daemon{Dir: dir, host: host, near: near, binary: binary}
	for _, sub := range []string{"config", "state", "run"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, errors.Join(err, d.Remove())
		}
	}
	return d, nil
}

// Remove kills the daemon, if it runs, and removes its directories.
func (d *Daemon) Remove() error {
	return errors.Join(d.Kill(), netnstest.RemoveDir(d.Dir))
}

// directories returns the flags that every command takes.
func (d *Daemon) directories() []string {
	return []string{
		"--config-dir", d.ConfigDir(),
		"--state-dir", d.StateDir(),
		"--run-dir", filepath.Join(d.Dir, "run"),
	}
}

// Command runs a subcommand to its end and returns what it wrote to standard output.
func (d *Daemon) Command(name string, args ...string) (string, error) {
	return d.host.Run(d.binary, append(append([]string{name}, d.directories()...), args...)...)
}

// Start starts the daemon and waits until it is ready.
func (d *Daemon) Start() error {
	if err := d.Launch(); err != nil {
		return err
	}
	return d.Await()
}

// Await waits until the daemon is ready.
func (d *Daemon) Await() error { return pace.Poll(startPatience, d.ready) }

// Launch starts the daemon and does not wait.
func (d *Daemon) Launch() error {
	cmd := exec.Command(d.binary, append([]string{"run"}, d.directories()...)...)
	cmd.Env = append(append(os.Environ(), "SSL_CERT_FILE="+d.RootsFile()), d.Env...)
	if d.Mounts {
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	proc, err := d.host.Launch(cmd, d.logPath())
	if err == nil {
		d.Process = proc
	}
	return err
}

// Use has the next start run another build.
func (d *Daemon) Use(binary string) { d.binary = binary }

// Running reports whether Start was called and nothing has ended the daemon since.
func (d *Daemon) Running() bool { return d.Process != nil }

// Pid returns the process id of the daemon; 0: it does not run.
func (d *Daemon) Pid() int {
	if d.Process == nil {
		return 0
	}
	return d.Process.Pid()
}

// ready asks the daemon whether its first sync is complete.
func (d *Daemon) ready() error {
	code, _, err := d.host.Get("http://127.0.0.1:10349/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("readyz answers %d", code)
	}
	return err
}

// Signal sends a signal to the daemon.
func (d *Daemon) Signal(sig os.Signal) error {
	if d.Process == nil {
		return errors.New("svcproxy does not run")
	}
	if err := d.Process.Cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %s to svcproxy: %w", sig, err)
	}
	return nil
}

// Freeze stops the daemon by SIGSTOP, and waits until none of its threads runs
// any more. SIGCONT lets it go on.
func (d *Daemon) Freeze() error {
	if err := d.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return pace.Poll(stopPatience, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.Pid()))
		if err != nil {
			return err
		}
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if err != nil {
				return err
			}
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") { // proc_pid_stat(5)
				return fmt.Errorf("%s: a thread still runs: %s", thread, stat)
			}
		}
		return nil
	})
}

// Stop ends the daemon by SIGTERM, which must succeed.
func (d *Daemon) Stop() error { return d.End(unix.SIGTERM) }

// End sends a signal that ends the daemon, and returns how it ended.
func (d *Daemon) End(sig os.Signal) error {
	if err := d.Signal(sig); err != nil {
		return err
	}
	return d.Wait(pace.Scale(stopPatience))
}

// Wait waits until the daemon has ended by itself, and returns how it did. When patience is over it is killed.
func (d *Daemon) Wait(patience time.Duration) error {
	err := d.Process.Wait(patience)
	d.Process = nil
	if err != nil {
		return fmt.Errorf("end of svcproxy: %w", err)
	}
	return nil
}

// Stacks ends the daemon and returns what its goroutines were doing.
func (d *Daemon) Stacks() string {
	before := len(d.LogTail(math.MaxInt))
	if err := d.End(unix.SIGQUIT); !errors.As(err, new(*exec.ExitError)) {
		return fmt.Sprint("no stacks: ", err)
	}
	return d.LogTail(math.MaxInt)[before:]
}

// Kill ends the daemon by SIGKILL. It may have ended already.
func (d *Daemon) Kill() error {
	if d.Process == nil {
		return nil
	}
	err := d.Process.Kill()
	d.Process = nil
	return err
}

// WriteFile puts a file into the configuration directory by renaming it there.
func (d *Daemon) WriteFile(name, text string) error {
	place, err := d.Stage(name, text)
	if err != nil {
		return err
	}
	return place()
}

// Stage writes a file beside its place in the configuration directory, and returns what puts it there.
func (d *Daemon) Stage(name, text string) (place func() error, err error) {
	path := d.path(name)
	temporary := filepath.Join(filepath.Dir(path), "."+name) // names with a dot are not read
	return func() error { return os.Rename(temporary, path) }, os.WriteFile(temporary, []byte(text), 0o644)
}

// RemoveFile removes a file from the configuration directory.
func (d *Daemon) RemoveFile(name string) error { return os.Remove(d.path(name)) }

// ConfigDir returns the configuration directory; StateDir that of what survives a restart.
func (d *Daemon) ConfigDir() string { return filepath.Join(d.Dir, "config") }
func (d *Daemon) StateDir() string  { return filepath.Join(d.Dir, "state") }

// Forget removes what the daemon, which does not run, remembers of files. What it
// has made in IPVS stays recorded: nobody else knows whose that is.
func (d *Daemon) Forget() error {
	list, err := filepath.Glob(filepath.Join(d.StateDir(), "*"))
	for _, path := range list {
		if filepath.Ext(path) != ".journal" {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

func (d *Daemon) path(name string) string { return filepath.Join(d.ConfigDir(), name) }

// Settings writes svcproxy.toml.
func (d *Daemon) Settings(text string) error { return d.WriteFile("svcproxy.toml", text) }

// marker is the address of a service that Apply adds to every file, each time on
// another port: when it answers, the file is in the kernel.
var marker = Dual{netip.MustParseAddr("10.96.255.254"), netip.MustParseAddr("fd00:96::ffff:fffe")}

// markerName is the name of a file's marker. It sorts before the others, for the
// log names only the first services of many that are synced together.
func markerName(file string) string { return "a-marker-" + file }

// Apply writes a service file, name.json, and waits until the kernel has it. Rules of
// other tables than the one that translates addresses may follow a moment later,
// unless the daemon writes in Steps: then its log tells when it has done all of it.
func (d *Daemon) Apply(name string, services ...Service) error {
	before := d.syncs(name)
	ask, err := d.Write(name, services...)
	if err != nil {
		return err
	}
	err = pace.Poll(applyPatience, func() error {
		if err := ask(); err != nil || !d.Steps || d.syncs(name) > before {
			return err
		}
		return errors.New("marker: it answers, but the sync goes on")
	})
	if err != nil {
		return fmt.Errorf("%s.json is not in the kernel %v after it was written: %w", name, applyPatience, err)
	}
	return nil
}

// syncs returns how many syncs of a file's marker the log tells of.
func (d *Daemon) syncs(name string) int {
	return strings.Count(d.LogTail(math.MaxInt), "service=default/"+markerName(name)+" ")
}

// Write is Apply without the wait: applied reports whether the kernel has the file.
func (d *Daemon) Write(name string, services ...Service) (applied func() error, err error) {
	d.applied++
	port := 1023 + d.applied
	text, err := File(append(services, Service{
		Name:      markerName(name),
		VIPs:      marker.Each(),
		Ports:     []Port{{Port: port, TargetPort: EndpointPorts[0]}},
		Endpoints: []Endpoint{{Address: d.near.V4}, {Address: d.near.V6}},
	})...)
	if err != nil {
		return nil, err
	}
	applied = func() error {
		for _, addr := range marker.Each() {
			q := Question{From: d.host, Protocol: source.TCP, To: netip.AddrPortFrom(addr, port)}
			if got := Ask(q); got.Outcome != Answered {
				return fmt.Errorf("marker: %s: %s", q, got)
			}
		}
		return nil
	}
	return applied, d.WriteFile(name+".json", text)
}

// Files returns what the daemon says of its service files, by their names.
func (d *Daemon) Files() (map[string]source.FileStatus, error) {
	text, err := d.Command("status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var status struct{ Sources []source.Status }
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, fmt.Errorf("reading the status of svcproxy: %w", err)
	}
	files := make(map[string]source.FileStatus)
	for _, s := range status.Sources {
		for _, f := range s.Files {
			files[filepath.Base(f.Path)] = f
		}
	}
	return files, nil
}

// RootsFile is where a test may put an authority that the daemon is to trust, before the first
// certificate that it sees: in place of the file of this host, if there is one.
func (d *Daemon) RootsFile() string { return filepath.Join(d.Dir, "roots.pem") }

func (d *Daemon) logPath() string { return filepath.Join(d.Dir, "log") }

// LogTail returns the last lines that the daemon has logged.
func (d *Daemon) LogTail(lines int) string {
	text, err := os.ReadFile(d.logPath())
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// Get makes an HTTP request from the host.
func (h *Host) Get(url string) (status int, body string, err error) {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = h.Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	client := http.Client{
		Timeout:   Slow(2 * time.Second),
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
