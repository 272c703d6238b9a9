//go:build vm

package ipvs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A host is a network namespace that is client, node and endpoints in one:
// endpoints are addresses of its loopback device. What needs several hosts is
// left to the lab.
type host struct {
	*backendtest.Host[*Backend]
	opts Options
}

var run = backendtest.Command

var families = []policy.Family{policy.IPv4, policy.IPv6}

// everywhere runs a test for both families, in runs it for some, each in its own namespace.
func everywhere(t *testing.T, test func(*host)) { in(t, families, test) }

func in(t *testing.T, fams []policy.Family, test func(*host)) {
	for _, fam := range fams {
		t.Run(fam.String(), func(t *testing.T) { test(newHost(t, fam)) })
	}
}

func newHost(t testing.TB, fam policy.Family) *host {
	t.Helper()
	if out, err := exec.Command("modprobe", "ip_vs").CombinedOutput(); err != nil { // its settings come with it
		t.Fatalf("modprobe ip_vs: %v\n%s", err, out)
	}
	netnstest.Enter(t)
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
		fatal.If(t, os.WriteFile("/proc/sys/net/ipv4/vs/"+name, []byte("1"), 0o644))
	}
	h := hostWith(t, fam, Options{StateDir: t.TempDir(), Scheduler: "wrr", DrainTimeout: time.Hour})
	h.ip("link set lo up")
	for i := range 4 {
		h.ip("addr add " + h.endpoint(i).Addr().String() + " dev lo")
	}
	for _, a := range h.World.Host.NodePortAddrs {
		h.ip("addr add " + a.String() + " dev lo")
	}
	return h
}

// hostWith returns a host in the namespace that the test is in.
func hostWith(t testing.TB, fam policy.Family, opts Options) *host {
	t.Helper()
	h := &host{&backendtest.Host[*Backend]{TB: t, Family: fam, World: backendtest.NewWorld(fam)}, opts}
	h.World.Host.LocalhostNodePorts = false
	h.Open = func() (*Backend, error) { return New(t.Context(), fam, h.opts) }
	h.Start()
	return h
}

// settled fails the test if a look at the kernel finds anything to do.
func (h *host) settled() { h.Helper(); h.Settled("this step") }

func (h *host) ip(args string) string {
	h.Helper()
	words := strings.Fields(args)
	if h.Family == policy.IPv6 {
		words = append([]string{"-6"}, words...)
		if words[1] == "addr" && words[2] == "add" {
			words = append(words, "nodad")
		}
	}
	return run(h, "ip", words...)
}

// tool returns the name of the family's iptables.
func (h *host) tool() string {
	return map[policy.Family]string{policy.IPv4: "iptables", policy.IPv6: "ip6tables"}[h.Family]
}

// set returns the name of a set of the family.
func (h *host) set(name string) string {
	return name + map[policy.Family]string{policy.IPv4: "-4", policy.IPv6: "-6"}[h.Family]
}

func (h *host) ipvsadm(args string) { h.Helper(); run(h, "ipvsadm", strings.Fields(args)...) }

// servers returns what ipvsadm-save says, with the thresholds that it leaves out, sorted.
func (h *host) servers() []string {
	h.Helper()
	lines := strings.Split(strings.TrimSpace(run(h, "ipvsadm", "-S", "-n")), "\n")
	limits := h.thresholds()
	for i, line := range lines {
		if w := strings.Fields(line); len(w) > 4 && w[0] == "-a" {
			lines[i] += limits[strings.Join(w[1:5], " ")]
		}
	}
	slices.Sort(lines)
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}

// thresholds returns those of destinations that have some, by "-t ADDRESS -r ADDRESS".
func (h *host) thresholds() map[string]string {
	h.Helper()
	all, at := map[string]string{}, ""
	for line := range strings.Lines(run(h, "ipvsadm", "-L", "-n", "--thresholds")) {
		w := strings.Fields(line)
		switch flag := map[string]string{"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}[w[0]]; {
		case flag != "":
			at = flag + " " + w[1]
		case w[0] == "->" && at != "" && w[2]+w[3] != "00":
			all[at+" -r "+w[1]] = strings.ReplaceAll(" -x "+w[2]+" -y "+w[3], " -y 0", "")
		}
	}
	return all
}

// want fails unless IPVS holds these lines and no others.
func (h *host) want(lines ...string) {
	h.Helper()
	slices.Sort(lines)
	if diff := cmp.Diff(append([]string{}, lines...), h.servers()); diff != "" {
		h.Errorf("ipvsadm -S -n (-want +got):\n%s", diff)
	}
}

// wantState fails unless IPVS holds what a State says, and these lines.
func (h *host) wantState(more ...string) {
	h.Helper()
	var lines []string
	for _, l := range Text(h.World.State, h.opts.Scheduler) {
		if strings.HasPrefix(l, "-") {
			lines = append(lines, l)
		}
	}
	h.want(append(lines, more...)...)
}

func (h *host) endpoint(n int) netip.AddrPort {
	return netip.AddrPortFrom(backendtest.Addr(h.Family, "endpoint", n+1), 8080)
}

// vip returns the nth address of services, port 80.
func (h *host) vip(n int) netip.AddrPort {
	return netip.AddrPortFrom(backendtest.Addr(h.Family, "vip", n), 80)
}

// service returns one with that VIP, of endpoints by their numbers.
func (h *host) service(name string, vip int, proto source.Protocol, endpoints ...int) *policy.Resolved {
	s := backendtest.Service{Name: name, Protocol: proto}
	for _, n := range endpoints {
		s.Targets = append(s.Targets, policy.NewTarget(h.endpoint(n), 1))
	}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.Everyone, policy.Reject)
	return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: h.vip(vip).Addr(), Port: 80}, Outside: route, FromLocal: route})
}

// nodePort returns a service with a node port only.
func (h *host) nodePort(name string, port uint16, endpoints ...int) *policy.Resolved {
	res := h.service(name, 1, source.TCP, endpoints...)
	f := *res.Frontends[0]
	f.Key = policy.FrontendKey{Addr: h.Family.Unspecified(), Protocol: source.TCP, Port: port, Kind: policy.NodePort}
	res.Frontends, res.RefusedAddrs, res.BoundAddrs = []*policy.Frontend{&f}, nil, nil
	return res
}

// listen makes endpoints answer with their number, and echo.
func (h *host) listen(endpoints int) {
	h.Helper()
	var servers echotest.Servers
	h.Cleanup(servers.Close)
	for i := range endpoints {
		h.Must(servers.Serve(strconv.Itoa(i), h.endpoint(i)))
	}
}

// dial connects, and returns which endpoint answers. The connection ends with a
// reset: IPVS would remember its end for two minutes. An IPv6 address has no
// route in the first moments after it was bound.
func (h *host) dial(to netip.AddrPort) (net.Conn, int, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	c, err := echotest.Dial(d, to.String())
	for try := 1; errors.Is(err, syscall.ENETUNREACH) && try < 100; try++ {
		time.Sleep(10 * time.Millisecond)
		c, err = echotest.Dial(d, to.String())
	}
	if err != nil {
		return nil, 0, err
	}
	c.SetLinger(0)
	h.Cleanup(func() { c.Close() })
	n, err := strconv.Atoi(c.Server)
	return c, n, err
}

func (h *host) mustDial(to netip.AddrPort) (net.Conn, int) {
	h.Helper()
	c, n, err := h.dial(to)
	h.Must(err)
	return c, n
}

// goesOn reports whether a connection still works.
func (h *host) goesOn(c net.Conn) bool {
	c.SetDeadline(time.Now().Add(pace.Scale(2 * time.Second)))
	b := []byte{77}
	if _, err := c.Write(b); err != nil {
		return false
	}
	_, err := c.Read(b)
	return err == nil && b[0] == 77
}

// eventually repeats a full sync until check returns true: the kernel's counters lag.
func (h *host) eventually(what string, check func() bool) {
	h.Helper()
	first := true
	if !pace.Within(time.Minute, func() bool {
		if !first {
			time.Sleep(time.Second)
		}
		first = false
		h.Sync(nil)
		return check()
	}) {
		h.Fatalf("never: %s; %q", what, h.servers())
	}
}

// forgetDrains has every drain begin again.
func (h *host) forgetDrains() {
	for key, dests := range h.Backend.record.drains {
		for at := range dests {
			h.Backend.record.drained(drainChange{key: key, at: at})
		}
	}
}

// files returns what the state directory has.
func (h *host) files() []string {
	list, err := filepath.Glob(h.opts.StateDir + "/*")
	h.Must(err)
	return list
}

// cleanUpAndWant cleans up, as a new process does, and looks for what must stay.
func (h *host) cleanUpAndWant(stay []string) {
	h.Helper()
	h.Restart()
	h.Must(h.Backend.Cleanup(h.Context()))
	h.want(stay...)
	if len(h.files()) > 0 {
		h.Errorf("files left: %v", h.files())
	}
}
