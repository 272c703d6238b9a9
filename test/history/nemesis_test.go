//go:build netns

package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/test/lab"
)

// A fault is one thing that the nemesis does. What it changes for long it changes back.
type fault struct {
	name  string
	modes string // a word that the name of a mode has; empty: all
	do    func(n *nemesis) error
}

// A lane is faults that are done one after the other.
type lane []fault

// lanes are done beside each other: one changes files, the other everything else.
var lanes = []lane{fileFaults, hostFaults}

// A step is a fault that was drawn, with the seed of its own choices.
type step struct {
	lane, fault int
	seed        uint64
}

func (s step) String() string { return fmt.Sprintf("%s (%x)", lanes[s.lane][s.fault].name, s.seed) }

// draw returns the steps of an episode, those of each lane in order.
func draw(seed uint64, mode string, each int) (steps []step) {
	r := rand.New(rand.NewPCG(seed, 0))
	for l := range lanes {
		for range each {
			i := r.IntN(len(lanes[l]))
			for !strings.Contains(mode, lanes[l][i].modes) {
				i = r.IntN(len(lanes[l]))
			}
			steps = append(steps, step{l, i, r.Uint64()})
		}
	}
	return steps
}

// A nemesis does one step.
type nemesis struct {
	*site
	ctx context.Context
	r   *rand.Rand
}

// pause waits between two times.
func (n *nemesis) pause(from, to time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-time.After(from + time.Duration(n.r.Int64N(int64(to-from)))):
	}
}

// run does the steps of one lane.
func (s *site) run(ctx context.Context, steps []step, note func(step)) error {
	for _, st := range steps {
		if ctx.Err() != nil {
			return nil
		}
		note(st)
		n := &nemesis{site: s, ctx: ctx, r: rand.New(rand.NewPCG(st.seed, 0))}
		if err := lanes[st.lane][st.fault].do(n); err != nil {
			return fmt.Errorf("%s: %w", st, err)
		}
		n.pause(50*time.Millisecond, 600*time.Millisecond)
	}
	return nil
}

// fileFaults write service files in all ways.
var fileFaults = lane{
	{name: "renamed over", do: (*nemesis).renamed},
	{name: "renamed over, several", do: func(n *nemesis) error {
		for range 2 + n.r.IntN(4) {
			if err := n.renamed(); err != nil {
				return err
			}
			n.pause(0, 150*time.Millisecond)
		}
		return nil
	}},
	{name: "written in place", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) })
	}},
	{name: "written in pieces", do: func(n *nemesis) error { return n.rewrite(n.inPieces) }},
	{name: "removed and written", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte(text), 0o644))
		})
	}},
	{name: "backup beside it", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error {
			return errors.Join(os.Rename(path, path+"~"), os.WriteFile(path, []byte(text), 0o644), os.Remove(path+"~"))
		})
	}},
	{name: "link exchanged", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error {
			target := filepath.Join(n.daemon.Dir, fmt.Sprintf("%x.json", n.r.Uint64()))
			return errors.Join(os.WriteFile(target, []byte(text), 0o644), os.Symlink(target, path+".new"), os.Rename(path+".new", path))
		})
	}},
	{name: "hard link", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error {
			other := filepath.Join(n.daemon.Dir, fmt.Sprintf("%x.json", n.r.Uint64()))
			return errors.Join(os.WriteFile(other, []byte(text), 0o644), os.Link(other, path+".new"), os.Rename(path+".new", path))
		})
	}},
	{name: "older than it was", do: func(n *nemesis) error {
		return n.rewrite(func(path, text string) error {
			old := time.Now().Add(-time.Duration(n.r.IntN(1000)) * time.Hour)
			return errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Chtimes(path+".new", old, old), os.Rename(path+".new", path))
		})
	}},
	{name: "cut off for a while", do: func(n *nemesis) error {
		return n.spoil(func(text string) string { return text[:n.r.IntN(len(text))] })
	}},
	{name: "broken for a while", do: func(n *nemesis) error {
		return n.spoil(func(text string) string { return strings.Replace(text, "endpoints", "endpionts", 1) })
	}},
	{name: "a directory in its place", do: func(n *nemesis) error {
		_, path, text, err := n.one()
		if err != nil {
			return err
		}
		err = errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		n.pause(500*time.Millisecond, 1500*time.Millisecond)
		return errors.Join(err, os.Remove(path), os.WriteFile(path, []byte(text), 0o644))
	}},
	{name: "removed for a while", do: (*nemesis).removed},
	{name: "no endpoints for a while", do: func(n *nemesis) error {
		i := n.r.IntN(len(kinds))
		err := n.put(n.version(n.r, i, nil), n.rename)
		n.pause(500*time.Millisecond, 1500*time.Millisecond)
		return errors.Join(err, n.put(n.version(n.r, i, n.someHosts()), n.rename))
	}},
	{name: "directory moved away", do: func(n *nemesis) error {
		dir := n.daemon.ConfigDir()
		err := os.Rename(dir, dir+".away")
		n.pause(300*time.Millisecond, 1500*time.Millisecond)
		return errors.Join(err, os.Rename(dir+".away", dir))
	}},
}

// one returns a service, where its file is, and its text.
func (n *nemesis) one() (svc lab.Service, path, text string, err error) {
	svc = n.files[serviceName(n.r.IntN(len(kinds)))]
	text, err = lab.File(svc)
	return svc, n.path(svc.Name), text, err
}

func (s *site) path(name string) string { return filepath.Join(s.daemon.ConfigDir(), name+".json") }

func (n *nemesis) someHosts() []*lab.Host {
	hosts := slices.Concat(n.Local, n.Remote)
	n.r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return hosts[:1+n.r.IntN(len(hosts))]
}

// put makes a version that of its service, and writes its file.
func (n *nemesis) put(svc lab.Service, write func(path, text string) error) error {
	text, err := lab.File(svc)
	if err != nil {
		return err
	}
	n.files[svc.Name] = svc
	return n.Services[svc.Name].Change(svc.Model(), 0, func() error { return write(n.path(svc.Name), text) })
}

// late is how long a writer may leave a file half done that svcproxy must not take for complete.
const late = 100 * time.Millisecond

// rewrite writes another version of a service in a way. Where the machine kept the writer in the middle of it, what
// others meet meanwhile is not judged.
func (n *nemesis) rewrite(write func(path, text string) error) error {
	svc := n.version(n.r, n.r.IntN(len(kinds)), n.someHosts())
	return n.put(svc, func(path, text string) error {
		start, damage := time.Now(), n.Damage()
		err := write(path, text)
		if time.Since(start) > late {
			damage.Over()
		} else {
			damage.Withdraw()
		}
		return err
	})
}

func (n *nemesis) renamed() error { return n.rewrite(n.rename) }

func (n *nemesis) rename(path, text string) error {
	return errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path))
}

func (n *nemesis) inPieces(path, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for len(text) > 0 {
		k := 1 + n.r.IntN(len(text))
		if _, err := f.WriteString(text[:k]); err != nil {
			return err
		}
		text = text[k:]
		time.Sleep(time.Duration(n.r.IntN(5)) * time.Millisecond)
	}
	return nil
}

// spoil leaves a text that cannot be used in a file for a while.
func (n *nemesis) spoil(how func(string) string) error {
	_, path, text, err := n.one()
	if err != nil {
		return err
	}
	err = os.WriteFile(path, []byte(how(text)), 0o644)
	n.pause(500*time.Millisecond, 1500*time.Millisecond)
	return errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
}

// removed removes a file, and brings it back with another version.
func (n *nemesis) removed() error {
	i := n.r.IntN(len(kinds))
	name := serviceName(i)
	err := n.Services[name].Change(nil, 0, func() error { return os.Remove(n.path(name)) })
	n.pause(500*time.Millisecond, 1500*time.Millisecond)
	return errors.Join(err, n.put(n.version(n.r, i, n.someHosts()), n.rename))
}

// hostFaults are what happens to svcproxy, its host and the endpoints.
var hostFaults = lane{
	{name: "killed", do: func(n *nemesis) error {
		return n.away((*lab.Daemon).Kill)
	}},
	{name: "ended and started", do: func(n *nemesis) error { return n.away((*lab.Daemon).Stop) }},
	{name: "killed as it starts", do: func(n *nemesis) error {
		return n.away(func(d *lab.Daemon) error {
			if err := errors.Join(d.Kill(), d.Launch()); err != nil {
				return err
			}
			n.pause(0, 300*time.Millisecond)
			return d.Kill()
		})
	}},
	{name: "another build", do: func(n *nemesis) error {
		return n.away(func(d *lab.Daemon) error {
			d.Use(pick(n.r, n.binaries...))
			return d.Stop()
		})
	}},
	{name: "frozen", do: func(n *nemesis) error {
		end := n.Clock.Disturb()
		defer end()
		err := n.daemon.Freeze()
		n.pause(200*time.Millisecond, 2*time.Second)
		return errors.Join(err, n.daemon.Signal(unix.SIGCONT))
	}},
	{name: "SIGHUP", do: func(n *nemesis) error { return n.daemon.Signal(unix.SIGHUP) }},
	{name: "ruleset flushed", do: func(n *nemesis) error {
		return n.damage("flush ruleset", "-F", "-t nat -F", "-t mangle -F", "-t raw -F")
	}},
	{name: "tables removed", modes: nftables, do: func(n *nemesis) error {
		return n.damage("delete table ip svcproxy\ndelete table ip6 svcproxy")
	}},
	{name: "one rule removed", modes: "tables", do: (*nemesis).removeRule},
	{name: "virtual servers removed", modes: ipvs, do: func(n *nemesis) error {
		defer n.Damage().Over()
		_, err := n.Node.Run("ipvsadm", "-C")
		return err
	}},
	{name: "addresses removed", modes: ipvs, do: func(n *nemesis) error {
		defer n.Damage().Over()
		_, err := n.Node.Run("ip", "addr", "flush", "dev", "svcproxy0")
		return err
	}},
	{name: "firewall restarted", do: (*nemesis).restartFirewall},
	{name: "containers started", do: (*nemesis).startContainers},
	{name: "foreign drop first", modes: "iptables", do: (*nemesis).foreignDrop},
	{name: "foreign table", do: func(n *nemesis) error {
		const table = "inet others"
		err := n.nft("table " + table + " { chain c { type filter hook forward priority -5; tcp dport 8080 counter; }; chain d { type nat hook postrouting priority 90; }; }")
		n.pause(200*time.Millisecond, time.Second)
		return errors.Join(err, n.nft("delete table "+table))
	}},
	{name: "endpoint dies, refuses", do: func(n *nemesis) error { return n.kill("reject with tcp reset", 1) }},
	{name: "endpoint dies, is silent", do: func(n *nemesis) error { return n.kill("drop", 1) }},
	{name: "endpoints flap", do: func(n *nemesis) error {
		for range 3 {
			if err := n.kill("reject with tcp reset", 1+n.r.IntN(2)); err != nil {
				return err
			}
			n.pause(50*time.Millisecond, 300*time.Millisecond)
		}
		return nil
	}},
	{name: "the way to some is lost", do: func(n *nemesis) error { return n.kill("drop", 3) }},
	{name: "drained", do: (*nemesis).drain},
	{name: "an address more", do: (*nemesis).addAddress},
	{name: "disk full", do: (*nemesis).fillDisk},
	{name: "reconfigured", do: func(n *nemesis) error {
		text := fmt.Sprintf(settings, modeName(n.mode)) + fmt.Sprintf("# %x\n", n.r.Uint64())
		return errors.Join(n.daemon.Settings(text), n.daemon.Signal(unix.SIGHUP))
	}},
	{name: "busy neighbours", do: func(n *nemesis) error {
		_, err := n.Node.Run("timeout", "1", "sh", "-c", "while :; do :; done & while :; do :; done")
		_ = err // it is ended
		return nil
	}},
}

// away has svcproxy not run for a while.
func (n *nemesis) away(end func(*lab.Daemon) error) error {
	over := n.Clock.Disturb()
	defer over()
	if err := end(n.daemon); err != nil {
		return err
	}
	n.pause(0, time.Second)
	n.Restarted()
	return n.daemon.Start()
}

// damage does what others may do, by scripts of nft or arguments of iptables.
func (n *nemesis) damage(script string, rules ...string) error {
	defer n.Damage().Over()
	if n.mode != nftables && len(rules) > 0 {
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
func (n *nemesis) tools() []string {
	variant := strings.TrimPrefix(n.mode, "iptables-")
	if n.mode == nftables || n.mode == ipvs {
		variant = "nft"
	}
	return []string{"iptables-" + variant, "ip6tables-" + variant}
}

func (n *nemesis) nft(script string) error {
	_, err := n.Node.RunInput(script+"\n", "nft", "-f", "-")
	return err
}

func fields(text string) []string { return strings.Fields(text) }

// removeRule removes a jump to our rules, or all that a map has.
func (n *nemesis) removeRule() error {
	if n.mode != nftables {
		return n.damage("", "-t nat -D PREROUTING -j SVCP-SERVICES")
	}
	family := pick(n.r, "ip", "ip6")
	out, err := n.Node.Run("nft", "list", "table", family, "svcproxy")
	if err != nil {
		return err
	}
	var maps []string
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "map "); ok {
			maps = append(maps, strings.TrimSuffix(name, " {"))
		}
	}
	if len(maps) == 0 {
		return nil
	}
	err = n.damage("flush map " + family + " svcproxy " + pick(n.r, maps...))
	if err != nil && strings.Contains(err.Error(), "No such file") {
		return nil // svcproxy has replaced it meanwhile
	}
	return err
}

// restartFirewall does as firewalld and services of rules do: what they have goes, and comes back in one step.
func (n *nemesis) restartFirewall() error {
	if n.mode == nftables {
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

// startContainers does as Docker does when it starts: chains of its own, whose jumps come first.
func (n *nemesis) startContainers() error {
	tools := n.tools()
	if n.mode != nftables {
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

// foreignDrop puts a rule before ours that drops what goes to endpoints. svcproxy steps over it.
func (n *nemesis) foreignDrop() error {
	damage := n.Damage()
	var err error
	for _, tool := range n.tools() {
		err = errors.Join(err, n.iptables(tool, "-I FORWARD -p tcp --dport 8080 -j DROP"))
	}
	damage.Over()
	n.pause(time.Second, 2*time.Second)
	for _, tool := range n.tools() {
		err = errors.Join(err, n.iptables(tool, "-D FORWARD -p tcp --dport 8080 -j DROP"))
	}
	return err
}

// kill has some hosts of endpoints refuse all, or be silent, for a while.
func (n *nemesis) kill(how string, count int) error {
	hosts := slices.Concat(n.Local, n.Remote)
	n.r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	hosts = hosts[:count]
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
	n.pause(200*time.Millisecond, 2*time.Second)
	return errors.Join(err, each(true, func(h *lab.Host) error {
		_, err := h.RunInput("delete table inet dead\n", "nft", "-f", "-")
		return err
	}))
}

// drain drains a host of endpoints for a while.
func (n *nemesis) drain() error {
	h := pick(n.r, slices.Concat(n.Local, n.Remote)...)
	tell := func(word string, drained bool) error {
		return n.Hosts[h.Addr().V4].Drained.Change(drained, 0, func() error {
			for _, a := range h.Addr().Each() {
				if out, err := n.daemon.Command(word, a.String()); err != nil && !isNobodys(err, out) {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
			return nil
		})
	}
	err := tell("drain", true)
	n.pause(500*time.Millisecond, 2*time.Second)
	return errors.Join(err, tell("undrain", false))
}

// isNobodys reports whether a drain was refused because no service has the endpoint just now.
func isNobodys(err error, out string) bool {
	return strings.Contains(err.Error()+out, "no service has") || strings.Contains(err.Error()+out, "no endpoint")
}

// addAddress gives the node one more address for a while.
func (n *nemesis) addAddress() error {
	change := func(on bool, do func(string, netip.Addr) error) error {
		return n.Host.Change(n.host(on), 0, func() error { return do("front", extraAddr) })
	}
	err := change(true, n.Node.AddAddr)
	n.pause(500*time.Millisecond, 2*time.Second)
	return errors.Join(err, change(false, n.Node.RemoveAddr))
}

// fillDisk leaves no room in the state directory for a while.
func (n *nemesis) fillDisk() error {
	f, err := os.Create(n.full)
	if err != nil {
		return err
	}
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	n.pause(500*time.Millisecond, 2*time.Second)
	return n.freeDisk()
}
