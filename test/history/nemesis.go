package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/test/lab"
)

// A Fault is one thing that the nemesis does. What it changes for long it changes back.
type Fault struct {
	Name  string
	Modes string // a word that the name of a mode has; empty: all
	Do    func(n *Nemesis) error
}

// A Lane is faults that are done one after the other, beside those of other lanes.
type Lane []Fault

// A Step is a fault that was drawn, with the seed of its own choices.
type Step struct {
	name        string
	lane, fault int
	seed        uint64
}

func (s Step) String() string { return fmt.Sprintf("%s (%x)", s.name, s.seed) }

// Draw returns the steps of an episode: some of each lane, in order.
func (s *Site) Draw(seed uint64, each int) (steps []Step) {
	r := rand.New(rand.NewPCG(seed, 0))
	for l, lane := range s.Lanes {
		weighted := lane.weighted(s.Mode)
		for range each {
			i := pick(r, weighted...)
			steps = append(steps, Step{lane[i].Name, l, i, r.Uint64()})
		}
	}
	return steps
}

// weighted returns the places of the lane's faults in a mode, five times of those that -often names.
func (lane Lane) weighted(mode string) (places []int) {
	for i, f := range lane {
		if strings.Contains(mode, f.Modes) {
			places = append(places, slices.Repeat([]int{i}, weight(f.Name))...)
		}
	}
	return places
}

// weight is how often something is drawn.
func weight(name string) int {
	if *oftenFlag != "" && regexp.MustCompile(*oftenFlag).MatchString(name) {
		return 5
	}
	return 1
}

// A Nemesis does one step.
type Nemesis struct {
	*Site
	ctx context.Context
	r   *rand.Rand
}

// pause waits between two times.
func (n *Nemesis) pause(from, to time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-time.After(from + time.Duration(n.r.Int64N(int64(to-from)))):
	}
}

// linger is pause, but now and then long enough for checks to have found out, and for nobody to be excused.
func (n *Nemesis) linger(from, to time.Duration) {
	if n.r.IntN(3) == 0 {
		from, to = 3*time.Second, 8*time.Second
	}
	n.pause(from, to)
}

// run does the steps of one lane.
func (s *Site) run(ctx context.Context, steps []Step, note func(Step)) error {
	for _, st := range steps {
		if ctx.Err() != nil {
			return nil
		}
		note(st)
		n := &Nemesis{Site: s, ctx: ctx, r: rand.New(rand.NewPCG(st.seed, 0))}
		if err := s.Lanes[st.lane][st.fault].Do(n); err != nil {
			return fmt.Errorf("%s: %w", st, err)
		}
		n.pause(50*time.Millisecond, 600*time.Millisecond)
	}
	return nil
}

func (n *Nemesis) someHosts() []*lab.Host {
	hosts := slices.Concat(n.Local, n.Remote)
	n.r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return hosts[:1+n.r.IntN(len(hosts))]
}

// ServiceFaults give services other versions, or take them away.
var ServiceFaults = Lane{
	{Name: "changed", Do: (*Nemesis).change},
	{Name: "changed, several", Do: func(n *Nemesis) error {
		for range 2 + n.r.IntN(4) {
			if err := n.change(); err != nil {
				return err
			}
			n.pause(0, 150*time.Millisecond)
		}
		return nil
	}},
	{Name: "removed for a while", Do: func(n *Nemesis) error {
		i := n.r.IntN(len(n.Kinds))
		name := serviceName(i)
		err := n.Services[name].Change(nil, n.takes(name), func() error { return n.Delete(name) })
		n.linger(500*time.Millisecond, 1500*time.Millisecond)
		return errors.Join(err, n.give(n.version(n.r, i, n.someHosts()), n.Put))
	}},
	{Name: "an endpoint leaves, and dies", Do: (*Nemesis).leaveAndDie},
	{Name: "no endpoints for a while", Do: func(n *Nemesis) error {
		i := n.r.IntN(len(n.Kinds))
		err := n.give(n.version(n.r, i, nil), n.Put)
		n.linger(500*time.Millisecond, 1500*time.Millisecond)
		return errors.Join(err, n.give(n.version(n.r, i, n.someHosts()), n.Put))
	}},
}

// leaveAndDie takes a host out of all services, and a little later has it reset the connections that it still has: what
// rolling updates do. Clients that connect again from the same port must not come to it.
func (n *Nemesis) leaveAndDie() error {
	gone := pick(n.r, slices.Concat(n.Local, n.Remote)...)
	for i := range n.Kinds {
		svc := n.versions[serviceName(i)]
		svc.Endpoints = slices.DeleteFunc(slices.Clone(svc.Endpoints), func(e lab.Endpoint) bool { return gone.Addr().Is(e.Address) })
		if len(svc.Endpoints) == 0 {
			svc = n.version(n.r, i, slices.DeleteFunc(slices.Concat(n.Local, n.Remote), func(h *lab.Host) bool { return h == gone }))
		}
		if err := n.give(svc, n.Put); err != nil {
			return err
		}
	}
	n.pause(1500*time.Millisecond, 2500*time.Millisecond)
	return n.killHosts("reject with tcp reset", gone)
}

// exclude has the service with source ranges admit everybody, and then only some.
func (n *Nemesis) exclude() error {
	const i = 2
	svc := n.version(n.r, i, n.someHosts())
	svc.SourceRanges = nil
	err := n.give(svc, n.Put)
	n.pause(2*time.Second, 3*time.Second)
	svc.SourceRanges = prefixes(n.Client.Addrs[:4])
	err = errors.Join(err, n.give(svc, n.Put))
	n.pause(4*time.Second, 5*time.Second)
	return err
}

// change gives a service another version.
func (n *Nemesis) change() error { return n.give(n.another(), n.Put) }

// another is a version of some service.
func (n *Nemesis) another() lab.Service {
	return n.version(n.r, n.r.IntN(len(n.Kinds)), n.someHosts())
}

// give gives a service a version in a way.
func (n *Nemesis) give(svc lab.Service, put func(lab.Service) error) error {
	n.versions[svc.Name] = svc
	return n.Services[svc.Name].Change(n.model(svc), n.takes(svc.Name), func() error { return put(svc) })
}

// HostFaults are what happens to the balancer, its host and the endpoints.
var HostFaults = Lane{
	{Name: "killed", Do: func(n *Nemesis) error { return n.away(n.Kill) }},
	{Name: "ended and started", Do: func(n *Nemesis) error { return n.away(n.Stop) }},
	{Name: "frozen", Do: func(n *Nemesis) error {
		defer n.Clock.Disturb()()
		err := n.Freeze()
		n.pause(200*time.Millisecond, 2*time.Second)
		return errors.Join(err, n.Thaw())
	}},
	{Name: "ruleset flushed", Do: func(n *Nemesis) error {
		return n.damage("flush ruleset", "-F", "-t nat -F", "-t mangle -F")
	}},
	{Name: "firewall restarted", Do: (*Nemesis).restartFirewall},
	{Name: "containers started", Do: (*Nemesis).startContainers},
	{Name: "foreign table", Do: func(n *Nemesis) error {
		const table = "inet others"
		err := n.nft("table " + table + " { chain c { type filter hook forward priority -5; tcp dport 8080 counter; }; chain d { type nat hook postrouting priority 90; }; }")
		n.pause(200*time.Millisecond, time.Second)
		return errors.Join(err, n.nft("delete table "+table))
	}},
	{Name: "endpoint dies, refuses", Do: func(n *Nemesis) error { return n.killEndpoints("reject with tcp reset", 1) }},
	{Name: "endpoint dies, is silent", Do: func(n *Nemesis) error { return n.killEndpoints("drop", 1) }},
	{Name: "endpoints flap", Do: func(n *Nemesis) error {
		for range 3 {
			if err := n.killEndpoints("reject with tcp reset", 1+n.r.IntN(2)); err != nil {
				return err
			}
			n.pause(50*time.Millisecond, 300*time.Millisecond)
		}
		return nil
	}},
	{Name: "the way to some is lost", Do: func(n *Nemesis) error { return n.killEndpoints("drop", 3) }},
	{Name: "an address more", Do: (*Nemesis).addAddress},
	{Name: "busy neighbours", Do: func(n *Nemesis) error {
		const loop = "timeout 3 sh -c 'while :; do :; done'"
		_, err := n.Node.Run("sh", "-c", loop+" & "+loop+"; wait")
		return err
	}},
	{Name: "connection table full", Modes: guest, Do: (*Nemesis).fillTable},
	{Name: "clock set", Modes: guest, Do: (*Nemesis).setClock},
	{Name: "memory short", Modes: guest, Do: func(n *Nemesis) error {
		_, err := n.Node.Run("sh", "-c", "head -c 900M /dev/zero | timeout 4 tail | wc -c") // tail keeps a line of any length
		return err
	}},
}

// guest are modes that are tried in a virtual machine: what befalls all of a machine does no harm to others there.
const guest = ipvs

// fillTable leaves no room in the connection table for a while.
func (n *Nemesis) fillTable() error {
	const path = "/proc/sys/net/netfilter/nf_conntrack_max" // in the first namespace it is for each
	was, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	defer n.Damage().Over()
	err = os.WriteFile(path, []byte("50"), 0)
	n.pause(500*time.Millisecond, 2*time.Second)
	return errors.Join(err, os.WriteFile(path, was, 0))
}

// setClock has the clock show another time for a while.
func (n *Nemesis) setClock() error {
	step := time.Duration(n.r.Int64N(int64(4*time.Hour))) - 2*time.Hour
	set := func(step time.Duration) error {
		to := unix.NsecToTimeval(time.Now().Add(step).UnixNano())
		return os.NewSyscallError("settimeofday", unix.Settimeofday(&to))
	}
	err := set(step)
	n.pause(500*time.Millisecond, 3*time.Second)
	return errors.Join(err, set(-step))
}

// away has the balancer not run for a while.
func (n *Nemesis) away(end func() error) error {
	defer n.Clock.Disturb()()
	n.Ends()
	if err := end(); err != nil {
		return err
	}
	n.pause(0, time.Second)
	n.Restarted()
	return n.Start()
}

// damage does what others may do, by scripts of nft or arguments of iptables.
func (n *Nemesis) damage(script string, rules ...string) error {
	defer n.Damage().Over()
	if n.Mode != nftables && len(rules) > 0 {
		for _, tool := range n.tools() {
			for _, rule := range rules {
				if err := n.iptables(tool, rule); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return n.nft(script)
}

// tools are those of the variant of iptables that svcproxy uses.
func (n *Nemesis) tools() []string {
	variant := strings.TrimPrefix(n.Mode, "iptables-")
	if n.Mode == nftables || n.Mode == ipvs {
		variant = "nft"
	}
	return []string{"iptables-" + variant, "ip6tables-" + variant}
}

func (n *Nemesis) nft(script string) error {
	_, err := n.Node.RunInput(script+"\n", "nft", "-f", "-")
	return err
}

func fields(text string) []string { return strings.Fields(text) }

// restartFirewall does as firewalld and services of rules do: what they have goes, and comes back in one step.
func (n *Nemesis) restartFirewall() error {
	if n.Mode == nftables {
		return n.damage("flush ruleset\ntable inet firewall { chain input { type filter hook input priority 10; ct state established accept; }; }")
	}
	defer n.Damage().Over()
	for _, tool := range n.tools() {
		const rules = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OTHERS -\n-A FORWARD -j OTHERS\nCOMMIT\n*nat\n:OTHERS -\n-A POSTROUTING -j OTHERS\nCOMMIT\n"
		if _, err := n.Node.RunInput(rules, tool+"-restore", "-w"); err != nil {
			return err
		}
	}
	return nil
}

// mayContend reports whether rules may be put before those of the balancer: svcproxy gives way to what does it more than
// three times a minute.
func (n *Nemesis) mayContend() bool {
	if time.Since(n.contended) < 25*time.Second {
		return false
	}
	n.contended = time.Now()
	return true
}

// startContainers does as Docker does when it starts: chains of its own, whose jumps come first.
func (n *Nemesis) startContainers() error {
	tools := n.tools()
	if n.Mode != nftables {
		if !n.mayContend() {
			return nil
		}
		defer n.Damage().Over()
	}
	for _, tool := range tools {
		for _, rule := range []string{"-N DOCKER-FORWARD", "-N DOCKER-USER", "-I FORWARD -j DOCKER-FORWARD", "-I FORWARD -j DOCKER-USER", "-t nat -N DOCKER", "-t nat -I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER"} {
			if err := n.iptables(tool, rule); err != nil {
				return err
			}
		}
	}
	n.pause(200*time.Millisecond, time.Second)
	for _, tool := range tools {
		for _, rule := range []string{"-D FORWARD -j DOCKER-FORWARD", "-D FORWARD -j DOCKER-USER", "-X DOCKER-FORWARD", "-X DOCKER-USER", "-t nat -D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", "-t nat -X DOCKER"} {
			if err := n.iptables(tool, rule); err != nil {
				return err
			}
		}
	}
	return nil
}

// killEndpoints has some hosts of endpoints refuse all, or be silent, for a while.
func (n *Nemesis) killEndpoints(how string, count int) error {
	hosts := slices.Concat(n.Local, n.Remote)
	n.r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return n.killHosts(how, hosts[:count]...)
}

// killHosts is killEndpoints for these hosts.
func (n *Nemesis) killHosts(how string, hosts ...*lab.Host) error {
	n.killing.Lock() // the lanes do not kill the same host
	defer n.killing.Unlock()
	each := func(alive bool, do func(*lab.Host) error) error {
		var err error
		for _, h := range hosts {
			change := n.Hosts[h.Addr().V4].Alive
			err = errors.Join(err, change.Change(alive, 0, func() error { return do(h) }))
		}
		return err
	}
	tcp, udp := how, how
	if how != "drop" {
		udp = "reject"
	}
	err := each(false, func(h *lab.Host) error {
		script := "table inet dead { chain in { type filter hook input priority 0; tcp dport 8080-8082 " + tcp + "; udp dport 8080-8082 " + udp + "; }; }\n"
		_, err := h.RunInput(script, "nft", "-f", "-")
		return err
	})
	n.linger(200*time.Millisecond, 2*time.Second)
	return errors.Join(err, each(true, func(h *lab.Host) error {
		_, err := h.RunInput("delete table inet dead\n", "nft", "-f", "-")
		return err
	}))
}

// addAddress gives the node one more address for a while.
func (n *Nemesis) addAddress() error {
	change := func(on bool, do func(string, netip.Addr) error) error {
		return n.Host.Change(n.host(on), 0, func() error { return do("front", extraAddr) })
	}
	err := change(true, n.Node.AddAddr)
	n.pause(500*time.Millisecond, 2*time.Second)
	return errors.Join(err, change(false, n.Node.RemoveAddr))
}
