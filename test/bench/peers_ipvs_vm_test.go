//go:build bench && vm

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// Environment variables of TestPeersIPVS.
const (
	envPeersIPVS = "SVCPROXY_PEERS_IPVS" // how many services
	envRounds    = "SVCPROXY_PEERS_ROUNDS"
)

const (
	ipvsPatience = 10 * time.Minute // for all that there is to be in the kernel, in a guest
	ipvsChanges  = 5                // of one endpoint, in each round
	ipvsSettled  = 3 * time.Second  // after which a program is taken to be idle
)

// An ipvsPeer is a program that holds IPVS to a file.
type ipvsPeer struct {
	name    string
	prepare func(n *node, all []lab.Service) (*exec.Cmd, error)
	change  func(n *node, cmd *exec.Cmd, all []lab.Service, from, to int) (begin time.Time, err error)
}

// TestPeersIPVS measures svcproxy in ipvs mode and keepalived by turns, with the same virtual
// servers without health checks, and prints a table. What the kernel has is looked up in the
// kernel, of both alike. It compares nothing with a promise.
func TestPeersIPVS(t *testing.T) {
	logMachine(t)
	keepalived, err := lab.Keepalived(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	peers := []ipvsPeer{svcproxyPeer, keepalivedPeer(keepalived)}
	count := size(envPeersIPVS, 1_000)
	values := map[string][2][]float64{}
	for i := range size(envRounds, 5) {
		for j, p := range peers {
			got, err := p.round(t, makeServices(count))
			if err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
			for what, v := range got {
				both := values[what]
				both[j] = append(both[j], v)
				values[what] = both
			}
			t.Logf("round %d, %s: %v", i+1, p.name, got)
		}
	}
	printIPVS(t, count, values)
}

// What a round measures, in the order of the table.
const (
	ipvsFirst   = "first sync, from the start of the process, s"
	ipvsCPU     = "processor time until then, s"
	ipvsOne     = "one endpoint of one service changed, s"
	ipvsMany    = "1 % of services changed, s"
	ipvsMemory  = "memory of all its processes, MiB"
	ipvsConnect = "connect, last service, µs"
	ipvsRestart = "restart, from the start of the process, s"
)

func printIPVS(t *testing.T, count int, values map[string][2][]float64) {
	var w strings.Builder
	fmt.Fprintf(&w, "%d services of %d endpoints, medians\n\n| | svcproxy | keepalived | times better |\n| --- | --: | --: | --: |\n", count, endpointsEach)
	for _, what := range []string{ipvsFirst, ipvsCPU, ipvsOne, ipvsMany, ipvsMemory, ipvsConnect, ipvsRestart} {
		ours, theirs := middle(values[what][0]), middle(values[what][1])
		fmt.Fprintf(&w, "| %s | %.3g | %.3g | %.3g |\n", what, ours, theirs, theirs/ours)
	}
	t.Log(w.String())
}

// middle returns the median of values; NaN: there are none.
func middle(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// round measures a program on a node of its own.
func (p *ipvsPeer) round(t *testing.T, all []lab.Service) (map[string]float64, error) {
	n, err := newNode(t, ipvs)
	if err != nil {
		return nil, err
	}
	cmd, err := p.prepare(n, all)
	if err != nil {
		return nil, err
	}
	r := &ipvsRound{ipvsPeer: p, t: t, node: n, all: all, got: map[string]float64{}}
	if err := n.Node.Do(func() (err error) { r.kernel, err = lvs.Dial(t.Context()); return err }); err != nil {
		return nil, err
	}
	defer r.kernel.Close()
	defer func() { r.end(unix.SIGKILL) }()
	if err := r.start(cmd, ipvsFirst); err != nil {
		return nil, err
	}
	cpu, _, err := r.resources()
	if err != nil {
		return nil, err
	}
	r.got[ipvsCPU] = cpu.Seconds()
	if err := errors.Join(r.changes(), r.connect()); err != nil {
		return nil, err
	}
	_, memory, err := r.resources()
	if err != nil {
		return nil, err
	}
	r.got[ipvsMemory] = memory / (1 << 20)
	r.end(unix.SIGTERM)
	return r.got, r.start(again(cmd), ipvsRestart)
}

// again is the same command, to be started once more.
func again(cmd *exec.Cmd) *exec.Cmd {
	next := exec.Command(cmd.Path, cmd.Args[1:]...)
	next.Env = cmd.Env
	return next
}

// An ipvsRound is one program on its node.
type ipvsRound struct {
	*ipvsPeer
	t      *testing.T
	node   *node
	all    []lab.Service
	kernel *lvs.Conn
	proc   *netnstest.Process
	got    map[string]float64
}

// start starts the program and waits until the kernel has all services.
func (r *ipvsRound) start(cmd *exec.Cmd, what string) error {
	proc, err := r.node.Node.Launch(cmd, filepath.Join(r.node.dir, "log"))
	if err != nil {
		return err
	}
	r.proc = proc
	took, err := r.await(proc.Begun, 100*time.Millisecond, r.complete)
	r.got[what] = took
	if err == nil {
		time.Sleep(ipvsSettled)
	}
	return err
}

// end ends the program by a signal, and waits for it.
func (r *ipvsRound) end(sig unix.Signal) {
	if r.proc != nil {
		_ = r.proc.Cmd.Process.Signal(sig)
		<-r.proc.Ended()
	}
}

// await returns the seconds from begin until done.
func (r *ipvsRound) await(begin time.Time, poll time.Duration, done func() error) (float64, error) {
	err := errors.New("nothing was looked up")
	for time.Since(begin) < ipvsPatience {
		if err = done(); err == nil {
			return time.Since(begin).Seconds(), nil
		}
		select {
		case <-r.proc.Ended():
			return 0, fmt.Errorf("it has ended: %v\n%s", r.proc.Cmd.ProcessState, r.proc.LogTail(2000))
		case <-time.After(poll):
		}
	}
	return 0, fmt.Errorf("%v are over: %w", ipvsPatience, err)
}

// keyOf is the virtual server of a service.
func keyOf(s *lab.Service) lvs.Key {
	return lvs.Key{Addr: s.VIPs[0], Protocol: unix.IPPROTO_TCP, Port: vipPort}
}

// complete returns an error unless the kernel has every service with all of its endpoints.
func (r *ipvsRound) complete() error {
	if err := r.holds(len(r.all)-1, len(r.all)); err != nil {
		return err // most often, and cheap
	}
	for i := range r.all {
		found, err := r.kernel.Destinations(context.Background(), keyOf(&r.all[i]))
		if err != nil {
			return err
		}
		if len(found) != endpointsEach {
			return fmt.Errorf("%s has %d endpoints", r.all[i].Name, len(found))
		}
	}
	return nil
}

// holds returns an error unless some services have the endpoints that they should have.
func (r *ipvsRound) holds(from, to int) error {
	for i := to - 1; i >= from; i-- {
		found, err := r.kernel.Destinations(context.Background(), keyOf(&r.all[i]))
		if err != nil {
			return err
		}
		for _, e := range r.all[i].Endpoints {
			at := netip.AddrPortFrom(e.Address, r.all[i].Ports[0].TargetPort)
			if !slices.ContainsFunc(found, func(d lvs.Destination) bool { return d.AddrPort == at }) {
				return fmt.Errorf("%s lacks %s", r.all[i].Name, at)
			}
		}
	}
	return nil
}

// changes replaces an endpoint of the last service, again and again, and then one of each of 1 % of the services.
func (r *ipvsRound) changes() error {
	var times []float64
	last := len(r.all) - 1
	for i := range ipvsChanges {
		took, err := r.replace(last, last+1, i)
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	r.got[ipvsOne] = middle(times)
	from := len(r.all) / 2
	took, err := r.replace(from, from+max(1, len(r.all)/100), ipvsChanges)
	r.got[ipvsMany] = took
	return err
}

// replace gives some services an endpoint that none had, and returns how long it took.
func (r *ipvsRound) replace(from, to, i int) (float64, error) {
	for at := from; at < to; at++ {
		r.all[at].Endpoints[0].Address = offset(spare, i*len(r.all)+at)
	}
	begin, err := r.change(r.node, r.proc.Cmd, r.all, from, to)
	if err != nil {
		return 0, err
	}
	took, err := r.await(begin, 2*time.Millisecond, func() error { return r.holds(from, to) })
	time.Sleep(ipvsSettled)
	return took, err
}

func (r *ipvsRound) connect() error {
	to := &target{what: r.name, from: r.node.Node, to: last(r.all)}
	err := connectAll([]*target{to}, 500)
	if err == nil {
		r.got[ipvsConnect] = median(to.times).Seconds() * 1e6
	}
	return err
}

// resources returns the processor time and the resident memory, in bytes, of the program and its children.
func (r *ipvsRound) resources() (cpu time.Duration, memory float64, err error) {
	own := r.proc.Pid()
	all, err := netnstest.Usages(func(u netnstest.Usage) bool { return u.Pid == own || u.Parent == own })
	for _, u := range all {
		cpu, memory = cpu+u.Processor, memory+float64(u.Resident)
	}
	return cpu, memory, err
}

// svcproxyPeer is svcproxy with files.
var svcproxyPeer = ipvsPeer{
	name: "svcproxy",
	prepare: func(n *node, all []lab.Service) (*exec.Cmd, error) {
		for _, sub := range []string{"config", "state", "run"} {
			if err := os.Mkdir(filepath.Join(n.dir, sub), 0o755); err != nil {
				return nil, err
			}
		}
		program, err := binary()
		if err == nil {
			err = os.WriteFile(filepath.Join(n.dir, "config/svcproxy.toml"), []byte(lone(ipvs)), 0o644)
		}
		if err == nil {
			err = writeFiles(filepath.Join(n.dir, "config"), all)
		}
		return exec.Command(program, "run", "--config-dir", n.dir+"/config", "--state-dir", n.dir+"/state", "--run-dir", n.dir+"/run"), err
	},
	change: func(n *node, _ *exec.Cmd, all []lab.Service, from, to int) (begin time.Time, err error) {
		var renames [][2]string
		for at := from; at < to; at = (at/perFile + 1) * perFile {
			first := at / perFile * perFile
			text, err := lab.File(all[first:min(first+perFile, len(all))]...)
			if err != nil {
				return begin, err
			}
			place := filepath.Join(n.dir, "config", fileName(at))
			fresh := filepath.Join(n.dir, "config", "."+fileName(at)) // names with a dot are not read
			if err := os.WriteFile(fresh, []byte(text), 0o644); err != nil {
				return begin, err
			}
			renames = append(renames, [2]string{fresh, place})
		}
		begin = time.Now()
		for _, r := range renames {
			err = errors.Join(err, os.Rename(r[0], r[1]))
		}
		return begin, err
	},
}

// keepalivedPeer is keepalived, started by command.
func keepalivedPeer(command []string) ipvsPeer {
	conf := func(n *node) string { return filepath.Join(n.dir, "keepalived.conf") }
	return ipvsPeer{
		name: "keepalived",
		prepare: func(n *node, all []lab.Service) (*exec.Cmd, error) {
			args := append(command[1:len(command):len(command)], "--dont-fork", "--log-console", "--check", "--use-file", conf(n),
				"--pid", n.dir+"/keepalived.pid", "--checkers_pid", n.dir+"/checkers.pid")
			return exec.Command(command[0], args...), os.WriteFile(conf(n), keepalivedConf(all), 0o600)
		},
		change: func(n *node, cmd *exec.Cmd, all []lab.Service, _, _ int) (begin time.Time, err error) {
			fresh := conf(n) + ".new"
			if err := os.WriteFile(fresh, keepalivedConf(all), 0o600); err != nil {
				return begin, err
			}
			begin = time.Now()
			return begin, errors.Join(os.Rename(fresh, conf(n)), cmd.Process.Signal(unix.SIGHUP))
		},
	}
}

// keepalivedConf has all services as virtual servers, whose real servers are not checked.
func keepalivedConf(all []lab.Service) []byte {
	var w strings.Builder
	for i := range all {
		s := &all[i]
		fmt.Fprintf(&w, "virtual_server %s %d {\n\tlb_algo wrr\n\tlb_kind NAT\n\tprotocol TCP\n", s.VIPs[0], s.Ports[0].Port)
		for _, e := range s.Endpoints {
			fmt.Fprintf(&w, "\treal_server %s %d {\n\t\tweight 1\n\t}\n", e.Address, s.Ports[0].TargetPort)
		}
		w.WriteString("}\n")
	}
	return []byte(w.String())
}
