//go:build netns && vm

package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// TestJudgeKeepalived has keepalived judged as svcproxy is, by what both have in common. What is found is in docs/judge.md:
// this test fails where keepalived does otherwise than docs/packets.md says.
func TestJudgeKeepalived(t *testing.T) {
	Run(t, ipvs, func(t *testing.T) *Site {
		s := newSite(t, ipvs)
		dir := t.TempDir()
		command, err := lab.Keepalived(dir)
		must(t, err)
		p := &keepalived{node: s.Node, dir: dir, command: command, services: map[string]lab.Service{}}
		t.Cleanup(func() { _ = p.Kill() })
		s.Balancer, s.Kinds, s.Lanes = p, []Kind{Kinds[0], Kinds[1], func(_ *Site, _ *rand.Rand, svc *lab.Service) { svc.HealthCheck = asked("refuse") }}, []Lane{ServiceFaults, HostFaults}
		s.AdaptHost = func(h *policy.Host) { // it masquerades nobody
			h.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
		}
		s.Log = func() string {
			text, _ := os.ReadFile(p.path("log"))
			return string(text[max(0, len(text)-20000):])
		}
		must(t, errors.Join(s.PutAll(), p.Start()))
		return s
	})
}

// keepalived is keepalived as a Balancer: services are virtual servers, whose addresses the host has.
type keepalived struct {
	node    *lab.Host
	dir     string
	command []string

	mu       sync.Mutex // lanes run beside each other
	services map[string]lab.Service
	proc     *netnstest.Process // nil: it does not run
}

func (p *keepalived) path(name string) string { return filepath.Join(p.dir, name) }

// Start implements Balancer.
func (p *keepalived) Start() error {
	args := append(p.command[1:len(p.command):len(p.command)], "--dont-fork", "--log-console", "--check", "--use-file", p.path("conf"), "--pid", p.path("pid"), "--checkers_pid", p.path("checkers"))
	cmd := exec.Command(p.command[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its checker is a process of its own
	proc, err := p.node.Launch(cmd, p.path("log"))
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.proc = proc
	p.mu.Unlock()
	return pace.Poll(30*time.Second, func() error {
		want := p.servers()
		out, err := p.node.Run("ipvsadm", "-S", "-n")
		if servers := strings.Count(out, "-A "); err == nil && servers < want {
			err = fmt.Errorf("keepalived has made %d virtual servers of %d", servers, want)
		}
		return err
	})
}

// servers returns how many virtual servers there are to be: for each protocol, in families with endpoints.
func (p *keepalived) servers() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, svc := range p.services {
		for _, vip := range svc.VIPs {
			if slices.ContainsFunc(svc.Endpoints, func(e lab.Endpoint) bool { return e.Address.Is4() == vip.Is4() }) {
				n += len(svc.Ports)
			}
		}
	}
	return n
}

// Stop implements Balancer.
func (p *keepalived) Stop() error {
	return p.end(func(proc *netnstest.Process) error {
		err := proc.Cmd.Process.Signal(unix.SIGTERM)
		<-proc.Ended()
		return err
	})
}

// Kill implements Balancer.
func (p *keepalived) Kill() error { return p.end((*netnstest.Process).Kill) }

func (p *keepalived) end(how func(*netnstest.Process) error) error {
	p.mu.Lock()
	proc := p.proc
	p.proc = nil
	p.mu.Unlock()
	if proc == nil {
		return nil
	}
	return how(proc)
}

// tell sends a signal to keepalived and its checker.
func (p *keepalived) tell(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return unix.Kill(-p.proc.Pid(), sig)
}

// Freeze implements Balancer.
func (p *keepalived) Freeze() error { return p.tell(unix.SIGSTOP) }

// Thaw implements Balancer.
func (p *keepalived) Thaw() error { return p.tell(unix.SIGCONT) }

// Put implements Balancer.
func (p *keepalived) Put(svc lab.Service) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if _, known := p.services[svc.Name]; !known {
		for _, a := range svc.VIPs {
			err = errors.Join(err, p.node.AddAddr("lo", a))
		}
	}
	p.services[svc.Name] = svc
	return errors.Join(err, p.write())
}

// Delete implements Balancer.
func (p *keepalived) Delete(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for _, a := range p.services[name].VIPs {
		err = errors.Join(err, p.node.RemoveAddr("lo", a))
	}
	delete(p.services, name)
	return errors.Join(err, p.write())
}

// write gives keepalived all services, and has it read them, with mu held.
func (p *keepalived) write() error {
	var w strings.Builder
	w.WriteString("global_defs {\n\tchecker_log_all_failures true\n}\n")
	for _, svc := range p.services {
		for _, vip := range svc.VIPs {
			for _, port := range svc.Ports {
				p.server(&w, svc, vip, port)
			}
		}
	}
	if err := os.WriteFile(p.path("new"), []byte(w.String()), 0o600); err != nil {
		return err
	}
	err := os.Rename(p.path("new"), p.path("conf"))
	if p.proc != nil && err == nil {
		err = p.proc.Cmd.Process.Signal(unix.SIGHUP)
	}
	return err
}

// server writes one virtual server.
func (p *keepalived) server(w *strings.Builder, svc lab.Service, vip netip.Addr, port lab.Port) {
	fmt.Fprintf(w, "virtual_server %s %d {\n\tlb_algo rr\n\tlb_kind NAT\n\tprotocol %s\n\tdelay_loop 0.2\n", vip, port.Port, strings.ToUpper(port.Protocol))
	if svc.SessionAffinity != "" {
		w.WriteString("\tpersistence_timeout 10800\n")
	}
	for _, e := range svc.Endpoints {
		if e.Address.Is4() != vip.Is4() {
			continue
		}
		fmt.Fprintf(w, "\treal_server %s %d {\n\t\tweight 1\n", e.Address, port.TargetPort)
		if svc.HealthCheck != nil {
			fmt.Fprintf(w, "\t\tTCP_CHECK {\n\t\t\tconnect_port %d\n\t\t\tconnect_timeout 0.2\n\t\t\tretry 1\n\t\t\tdelay_before_retry 0.2\n\t\t}\n", port.TargetPort)
		}
		w.WriteString("\t}\n")
	}
	w.WriteString("}\n")
}
