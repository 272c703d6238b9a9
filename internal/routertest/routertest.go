// Package routertest runs the routers of Debian, FRR and BIRD 2, in network namespaces of tests.
package routertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// A Router is a routing daemon, or those of FRR, that run.
type Router struct {
	dir  string // has its configuration, its sockets and its log; short, as unix(7) limits names of sockets
	kind kind
	runs []*netnstest.Process
}

// A kind is what differs between routers.
type kind struct {
	configure func(path string) []string         // the command that has it take over a configuration, all of it
	show      func(prefix netip.Prefix) []string // the command that shows a route
	has       func(shown string, prefix netip.Prefix) bool
}

// timeout ends a command that hangs. One takes some 40 ms.
const timeout = 20 * time.Second

// StartFRR starts bgpd with a configuration. With kernel, zebra too, which has the kernel hold its routes; else
// they are in BGP's table and nowhere else.
func StartFRR(ns *netnstest.Namespace, dir, conf string, kernel bool) (*Router, error) {
	vtysh := func(args ...string) []string { return append([]string{"vtysh", "--vty_socket", dir}, args...) }
	r := &Router{dir: dir, kind: kind{
		configure: func(path string) []string { return vtysh("-f", path) },
		show: func(p netip.Prefix) []string {
			return vtysh("-c", fmt.Sprintf("show bgp %s unicast %v json", familyName(p), p))
		},
		has: frrHas,
	}}
	bgpd := []string{"/usr/lib/frr/bgpd", "-S", "-P", "0", "-f", os.DevNull, "--vty_socket", dir, "-i", dir + "/bgpd.pid"}
	var err error
	if kernel {
		bgpd = append(bgpd, "-z", dir+"/zserv")
		err = r.start(ns, "zebra.vty", "/usr/lib/frr/zebra", "-u", "root", "-g", "frrvty", "-P", "0", "-f", os.DevNull,
			"--vty_socket", dir, "-i", dir+"/zebra.pid", "-z", dir+"/zserv")
	} else {
		bgpd = append(bgpd, "-n", "-Z")
	}
	if err == nil {
		err = r.start(ns, "bgpd.vty", bgpd...)
	}
	if err == nil {
		err = r.Configure(conf)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting FRR: %w", err), r.Close())
	}
	return r, nil
}

// frrHas reads what FRR says of a prefix: {} or the paths.
func frrHas(shown string, _ netip.Prefix) bool {
	var found struct{ Paths []any }
	return json.Unmarshal([]byte(shown), &found) == nil && len(found.Paths) > 0
}

// StartBird starts BIRD with a configuration, which says whether the kernel holds its routes.
func StartBird(ns *netnstest.Namespace, dir, conf string) (*Router, error) {
	birdc := func(args ...string) []string { return append([]string{"birdc", "-r", "-s", dir + "/ctl"}, args...) }
	r := &Router{dir: dir, kind: kind{
		configure: func(path string) []string {
			return []string{"birdc", "-s", dir + "/ctl", "configure", fmt.Sprintf("%q", path)}
		},
		show: func(p netip.Prefix) []string { return birdc("show", "route", "all", p.String()) },
		has:  func(shown string, p netip.Prefix) bool { return strings.Contains(shown, p.String()) },
	}}
	path, err := r.write(conf)
	if err == nil {
		_, err = run("bird", "-p", "-c", path) // else it is not told why it ended
	}
	if err == nil {
		err = r.start(ns, "ctl", "bird", "-f", "-c", path, "-s", dir+"/ctl", "-P", dir+"/pid")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting BIRD: %w", err), r.Close())
	}
	return r, nil
}

// familyName returns the name of a family in FRR's commands.
func familyName(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// start starts a daemon, and waits until it has made its socket.
func (r *Router) start(ns *netnstest.Namespace, socket string, args ...string) error {
	p, err := ns.Launch(exec.Command(args[0], args[1:]...), filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	r.runs = append(r.runs, p)
	err = pace.Poll(timeout, func() error { _, err := os.Stat(filepath.Join(r.dir, socket)); return err })
	if err != nil {
		return fmt.Errorf("%s has no socket %v after its start: %s", args[0], timeout, r.Log())
	}
	return nil
}

// Configure has the router take over a configuration: FRR in addition to what it has, BIRD in place of that. What the
// router does not accept is an error.
func (r *Router) Configure(conf string) error {
	path, err := r.write(conf)
	if err != nil {
		return err
	}
	args := r.kind.configure(path)
	out, err := run(args...)
	if err == nil && args[0] == "birdc" && !strings.Contains(out, "Reconfigur") { // it says why, and ends with 0
		err = errors.New(out)
	}
	if err != nil {
		return fmt.Errorf("configuring the router: %w", err)
	}
	return nil
}

// Show returns what the router says of its BGP routes to a prefix; "" when it does not answer.
func (r *Router) Show(prefix netip.Prefix) string {
	out, err := run(r.kind.show(prefix)...)
	switch {
	case err == nil:
		return out
	case strings.Contains(err.Error(), noNetwork): // an answer, though birdc ends with 1
		return noNetwork
	}
	return ""
}

// noNetwork is what BIRD says where it has no such route.
const noNetwork = "Network not found"

// Has reports whether the router has a BGP route to exactly this prefix.
func (r *Router) Has(prefix netip.Prefix) bool { return r.kind.has(r.Show(prefix), prefix) }

// Lacks reports whether the router says that it has no BGP route to this prefix: one that does not answer has said nothing.
func (r *Router) Lacks(prefix netip.Prefix) bool {
	shown := r.Show(prefix)
	return shown != "" && !r.kind.has(shown, prefix)
}

// Log returns what the router has written.
func (r *Router) Log() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Close kills the router, whose routes stay in the kernel.
func (r *Router) Close() error {
	for _, p := range r.runs {
		_ = p.Kill() // it may have ended
	}
	r.runs = nil
	return nil
}

func (r *Router) write(conf string) (string, error) {
	path := filepath.Join(r.dir, "conf")
	return path, os.WriteFile(path, []byte(conf), 0o644)
}

func run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
