//go:build netns

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
)

// A planHost is a namespace with an endpoint, and directories of svcproxy.
type planHost struct {
	*testing.T
	dir string
}

// plan runs svcproxy plan as a process.
func (h *planHost) plan(args ...string) (code int, stdout, stderr string) {
	h.Helper()
	var out, errs strings.Builder
	cmd := command(h.T, h.dir, append([]string{"plan"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code is looked at
	return cmd.ProcessState.ExitCode(), out.String(), strings.ReplaceAll(errs.String(), h.dir+"/", "")
}

// says fails the test unless a plan ends so, with these lines.
func (h *planHost) says(code int, stderr string, lines ...string) {
	h.Helper()
	got, out, errs := h.plan()
	if got != code || !strings.HasPrefix(errs, stderr) || stderr == "" && errs != "" {
		h.Fatalf("exit %d\n%s%s\nwant %d: %s", got, out, errs, code, stderr)
	}
	for _, l := range lines {
		if !strings.Contains(out, l) {
			h.Errorf("plan does not say %q:\n%s", l, out)
		}
	}
}

func (h *planHost) write(name, text string) {
	h.Helper()
	path := filepath.Join(h.dir, "etc", name)
	fatal.If(h, os.WriteFile(path+".tmp", []byte(text), 0o644))
	fatal.If(h, os.Rename(path+".tmp", path))
}

// rules returns all that the kernel holds.
func (h *planHost) rules() string {
	h.Helper()
	return backendtest.Command(h, "nft", "list", "ruleset")
}

// until waits for a plan.
func (h *planHost) until(code int) {
	h.Helper()
	var said string
	pace.UntilOr(h, func() bool {
		got, out, errs := h.plan()
		said = fmt.Sprintf("exit %d, want %d: %s%s", got, code, out, errs)
		return got == code
	}, func() string { return said })
}

const planFile = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ name = "http", port = 80, target_port = 8080 }]
endpoints = ["192.0.2.11"]
`

// An operator's day: before the first start, with a daemon that waits for its interval,
// with a file that is broken, and with the daemon gone.
func TestPlanOverADay(t *testing.T) {
	netnstest.Enter(t)
	h := &planHost{t, etc(t, map[string]string{"web.toml": planFile, "svcproxy.toml": "mode = \"nftables\"\nfamilies = [\"ipv4\"]\nhttp_address = \"\"\n[sync]\nmin_interval = \"1h\"\n"})}
	for _, args := range []string{"link set lo up", "addr add 192.0.2.11/32 dev lo", "route add 10.96.0.0/16 dev lo src 192.0.2.11"} {
		backendtest.Command(t, "ip", strings.Fields(args)...)
	}
	before := h.rules()
	h.says(2, "", "1 service (add 1), ", "compared with the files that were last accepted (nftables mode)",
		"+ default/web  addresses: 10.96.0.10:80/tcp; endpoints: 1\n", "  add table ip svcproxy\n")
	if after := h.rules(); after != before {
		t.Errorf("plan has changed the kernel:\n%s", after)
	}

	stop := h.daemon()
	h.until(0)
	h.says(0, "", "nothing would change, compared with what the kernel holds (nftables mode)\n")
	backendtest.Command(t, "nft", "add", "chain", "ip", "svcproxy", "foreign")
	h.until(2) // it is to be repaired, in an hour
	h.says(2, "", "0 services, 1 kernel object (remove 1), ", "\nKERNEL\n  remove chain ip svcproxy foreign\n")
	backendtest.Command(t, "nft", "delete", "chain", "ip", "svcproxy", "foreign")
	h.until(0)
	defer h.connect(netip.MustParseAddrPort("192.0.2.11:8080"), netip.MustParseAddrPort("10.96.0.10:80"))()
	h.write("web.toml", strings.Replace(planFile, "192.0.2.11", "192.0.2.12", 1))
	h.until(2)
	change := []string{
		"1 service (change 1), ", "~ default/web  endpoints added: 192.0.2.12; endpoints removed: 192.0.2.11\n",
		"  default/web:http  established TCP connections to 192.0.2.11:8080 go on (1 now)\n", "\nKERNEL\n  change element ip svcproxy ",
	}
	h.says(2, "", change...)
	h.write("broken.toml", "x = 1\nservices = []\n")
	h.until(1)
	h.says(1, "etc/broken.toml:1:1: unknown key \"x\"; want defaults or services\n", change...)

	stop() // what was accepted is not in the kernel yet
	h.says(1, "etc/broken.toml:1:1: ", "0 services, ", "compared with the files that were last accepted", "  change element ip svcproxy ")
	h.write("web.toml", planFile)
	h.says(1, "etc/broken.toml:1:1: ", "endpoints added: 192.0.2.11; endpoints removed: 192.0.2.12", " 0 kernel objects")
	h.write("broken.toml", "services = []\n")
	h.says(2, "")
}

// daemon starts the program, and returns what stops it.
func (h *planHost) daemon() (stop func()) {
	h.Helper()
	cmd := command(h.T, h.dir, "run")
	cmd.Stderr = h.Output()
	fatal.If(h, cmd.Start())
	h.untilAnswering()
	return func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			h.Errorf("run: %v", err)
		}
	}
}

// untilAnswering waits until a daemon can be asked: a plan needs none, other commands do.
func (h *planHost) untilAnswering() {
	h.Helper()
	fatal.If(h, pace.Poll(time.Minute, func() error {
		conn, err := net.Dial("unix", filepath.Join(h.dir, "run", "svcproxy.sock"))
		if err == nil {
			conn.Close()
		}
		return err
	}))
}

// connect leaves a connection open until what it returns is called.
func (h *planHost) connect(endpoint, to netip.AddrPort) (closeAll func()) {
	h.Helper()
	l, err := net.Listen("tcp", endpoint.String())
	fatal.If(h, err)
	conn, err := net.DialTimeout("tcp", to.String(), pace.Scale(10*time.Second))
	fatal.If(h, err)
	return func() { conn.Close(); l.Close() }
}
