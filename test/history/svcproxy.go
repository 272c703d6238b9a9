package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// Svcproxy is svcproxy as a Balancer, with what can happen to it alone.
type Svcproxy struct {
	*lab.Daemon
	stock
	node     *lab.Host
	binaries []string // builds, of which any may be started

	mu   sync.Mutex // held while settings are written, and while their directory is away
	mode string
}

// settings are those of svcproxy.toml. All addresses of the node serve node ports.
const settings = `mode = %q
node_name = "node"
zone = "here"
node_port_addresses = ["all"]
sources = %s
[sync]
resync_interval = "5s"
`

// NewSvcproxy prepares svcproxy on the node of a site. Its state directory is a small file system of its own.
func NewSvcproxy(s *Site, binaries []string) (*Svcproxy, error) {
	d, err := lab.NewDaemon(s.Lab, binaries[0])
	if err != nil {
		return nil, err
	}
	p := &Svcproxy{Daemon: d, node: s.Node, binaries: binaries, stock: stock{supply: fromFiles}}
	if p.store, err = lab.NewStore(); err == nil {
		err = errors.Join(p.store.Start(s.Node), unix.Mount("state", d.StateDir(), "tmpfs", 0, "size=16m,mode=755"), p.use(s.Mode, ""))
	}
	if err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

// Remove kills svcproxy, and removes all that it had.
func (p *Svcproxy) Remove() error {
	p.store.Stop()
	return p.Daemon.Remove()
}

// use writes settings with a mode, or, empty, with that of before, and a comment.
func (p *Svcproxy) use(mode, comment string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mode != "" {
		p.mode, _, _ = strings.Cut(mode, "-")
	}
	return p.Settings(fmt.Sprintf(settings, p.mode, p.sources) + p.settings() + comment)
}

// changeMode has another mode in use for a while. Each of the two changes may come with a restart.
func (p *Svcproxy) changeMode(n *Nemesis) error {
	other := nftables
	if n.Mode == nftables {
		other = "iptables"
	}
	defer n.Changes()()
	change := func(mode string) error {
		if n.r.IntN(3) == 0 {
			return n.away(func() error { return errors.Join(p.Stop(), p.use(mode, "")) })
		}
		return p.use(mode, "")
	}
	err := change(other)
	n.pause(200*time.Millisecond, 5*time.Second)
	return errors.Join(err, change(n.Mode))
}

// Put implements Balancer.
func (p *Svcproxy) Put(svc lab.Service) error {
	if p.has(svc.Name) {
		text, err := fileText(svc)
		p.publish(fileName(svc.Name), text)
		return err
	}
	return p.putBy(svc, rename)
}

// putBy writes a version to the file of its service in a way.
func (p *Svcproxy) putBy(svc lab.Service, write func(path, text string) error) error {
	text, err := fileText(svc)
	if err != nil {
		return err
	}
	return write(p.path(svc.Name), text)
}

// fileText returns a service file.
func fileText(svc lab.Service) (string, error) {
	text, err := lab.File(svc)
	if err == nil && isTOML(svc.Name) {
		text, err = toTOML(text)
	}
	return text, err
}

// isTOML reports whether the file of a service is in TOML: half of them are. A beginning of TOML can be valid.
func isTOML(name string) bool { return (name[len(name)-1]-'0')%2 == 1 }

func (p *Svcproxy) path(name string) string { return filepath.Join(p.ConfigDir(), fileName(name)) }

func fileName(service string) string {
	if isTOML(service) {
		return service + ".toml"
	}
	return service + ".json"
}

// toTOML returns what a text in JSON says in TOML.
func toTOML(text string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var all map[string]any
	if err := d.Decode(&all); err != nil {
		return "", err
	}
	var b strings.Builder
	err := toml.NewEncoder(&b).Encode(all)
	return b.String(), err
}

// Delete implements Balancer.
func (p *Svcproxy) Delete(name string) error {
	if p.has(name) {
		p.publish(fileName(name), "")
		return nil
	}
	return os.Remove(p.path(name))
}

// Thaw implements Balancer.
func (p *Svcproxy) Thaw() error { return p.Signal(unix.SIGCONT) }

func rename(path, text string) error {
	return errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path))
}

// Lanes are what can happen to svcproxy: to its files and its store, to everything else, and drains.
func (p *Svcproxy) Lanes() []Lane {
	texts := slices.Concat(ServiceFaults, Lane{
		{Name: "sources excluded", Do: (*Nemesis).exclude},
		{Name: "reconfigured", Do: func(n *Nemesis) error {
			return p.use("", fmt.Sprintf("# %x\n", n.r.Uint64()))
		}},
	})
	host := slices.Concat(HostFaults, p.hostFaults())
	if len(p.numbers(false)) > 0 {
		texts = append(texts, p.fileFaults()...)
	}
	if len(p.numbers(true)) > 0 {
		texts = append(texts, p.storeFaults()...)
		host = append(host, Fault{Name: "ended and started without the store", Do: p.restartWithout})
	}
	drains := Lane{{Name: "drained", Do: p.drain}, {Name: "nothing", Do: func(n *Nemesis) error { n.pause(time.Second, 3*time.Second); return nil }}}
	return []Lane{texts, host, drains}
}

// fileFaults write service files in all ways.
func (p *Svcproxy) fileFaults() Lane {
	return Lane{
		{Name: "written slowly", Do: func(n *Nemesis) error { return p.writeSlowly(n) }},
		{Name: "written in place", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) })
		}},
		{Name: "written in pieces", Do: func(n *Nemesis) error { return p.rewrite(n, n.inPieces) }},
		{Name: "removed and written", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error {
				return errors.Join(os.Remove(path), os.WriteFile(path, []byte(text), 0o644))
			})
		}},
		{Name: "backup beside it", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error {
				return errors.Join(os.Rename(path, path+"~"), os.WriteFile(path, []byte(text), 0o644), os.Remove(path+"~"))
			})
		}},
		{Name: "link exchanged", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error {
				target := filepath.Join(p.Dir, fmt.Sprintf("%x.json", n.r.Uint64()))
				return errors.Join(os.WriteFile(target, []byte(text), 0o644), os.Symlink(target, path+".new"), os.Rename(path+".new", path))
			})
		}},
		{Name: "hard link", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error {
				other := filepath.Join(p.Dir, fmt.Sprintf("%x.json", n.r.Uint64()))
				return errors.Join(os.WriteFile(other, []byte(text), 0o644), os.Link(other, path+".new"), os.Rename(path+".new", path))
			})
		}},
		{Name: "older than it was", Do: func(n *Nemesis) error {
			return p.rewrite(n, func(path, text string) error {
				old := time.Now().Add(-time.Duration(n.r.IntN(1000)) * time.Hour)
				return errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Chtimes(path+".new", old, old), os.Rename(path+".new", path))
			})
		}},
		{Name: "cut off for a while", Do: func(n *Nemesis) error {
			return p.spoil(n, func(path, text string) error { return os.WriteFile(path, []byte(text[:n.r.IntN(len(text))]), 0o644) })
		}},
		{Name: "broken for a while", Do: func(n *Nemesis) error {
			return p.spoil(n, func(path, text string) error {
				return os.WriteFile(path, []byte(strings.Replace(text, "endpoints", "endpionts", 1)), 0o644)
			})
		}},
		{Name: "a directory in its place", Do: func(n *Nemesis) error {
			return p.spoil(n, func(path, _ string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) })
		}},
		{Name: "directory moved away", Do: func(n *Nemesis) error {
			defer n.Clock.Disturb()() // no change of a file counts while it is away
			p.mu.Lock()
			defer p.mu.Unlock()
			dir := p.ConfigDir()
			err := os.Rename(dir, dir+".away")
			n.pause(300*time.Millisecond, 1500*time.Millisecond)
			return errors.Join(err, os.Rename(dir+".away", dir))
		}},
	}
}

// late is how long a writer may leave a file half done before svcproxy may take it for complete. A text in TOML that ends
// in the middle of a number, as port 80 of 8080, is another version, which counts at once.
const late = 10 * time.Millisecond

// rewrite writes another version of a service in a way. Where the machine kept the writer in the middle of it, what
// others meet meanwhile is not judged.
func (p *Svcproxy) rewrite(n *Nemesis, write func(path, text string) error) error {
	return n.give(p.anotherFile(n), func(svc lab.Service) error {
		start, damage := time.Now(), n.Damage()
		err := p.putBy(svc, write)
		if time.Since(start) > late {
			damage.Over()
		} else {
			damage.Withdraw()
		}
		return err
	})
}

// anotherFile is a version of some service that is in a file.
func (p *Svcproxy) anotherFile(n *Nemesis) lab.Service {
	return n.version(n.r, pick(n.r, p.numbers(false)...), n.someHosts())
}

// inPieces writes a file piece by piece.
func (n *Nemesis) inPieces(path, text string) error {
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

// writeSlowly writes another version of a service, and keeps the file open in the middle of it for a moment.
func (p *Svcproxy) writeSlowly(n *Nemesis) error {
	return n.give(p.anotherFile(n), func(svc lab.Service) error {
		return p.putBy(svc, func(path, text string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			k := n.r.IntN(len(text))
			_, err = f.WriteString(text[:k])
			n.pause(200*time.Millisecond, 800*time.Millisecond)
			_, err2 := f.WriteString(text[k:])
			return errors.Join(err, err2, f.Close())
		})
	})
}

// spoil leaves something in the place of a service file in JSON for a while that cannot be used.
func (p *Svcproxy) spoil(n *Nemesis, how func(path, text string) error) error {
	inJSON := slices.DeleteFunc(p.numbers(false), func(i int) bool { return isTOML(serviceName(i)) })
	return p.putBy(n.versions[serviceName(pick(n.r, inJSON...))], func(path, text string) error {
		err := how(path, text)
		n.pause(500*time.Millisecond, 1500*time.Millisecond)
		if is, statErr := os.Lstat(path); statErr == nil && is.IsDir() {
			err = errors.Join(err, os.Remove(path))
		}
		return errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
	})
}

// hostFaults are what happens to svcproxy alone.
func (p *Svcproxy) hostFaults() Lane {
	return Lane{
		{Name: "killed as it starts", Do: func(n *Nemesis) error {
			return n.away(func() error {
				if err := errors.Join(p.Kill(), p.Launch()); err != nil {
					return err
				}
				n.pause(0, 300*time.Millisecond)
				return p.Kill()
			})
		}},
		{Name: "another build", Do: func(n *Nemesis) error {
			return n.away(func() error {
				p.Use(pick(n.r, p.binaries...))
				return p.Stop()
			})
		}},
		{Name: "another mode", Do: p.changeMode},
		{Name: "SIGHUP", Do: func(n *Nemesis) error { return p.Signal(unix.SIGHUP) }},
		{Name: "tables removed", Modes: nftables, Do: func(n *Nemesis) error {
			return n.remove("delete table ip svcproxy", "delete table ip6 svcproxy")
		}},
		{Name: "one rule removed", Modes: "tables", Do: (*Nemesis).removeRule},
		{Name: "virtual servers removed", Modes: ipvs, Do: func(n *Nemesis) error {
			defer n.Damage().Over()
			n.Cuts()
			_, err := n.Node.Run("ipvsadm", "-C")
			return err
		}},
		{Name: "addresses removed", Modes: ipvs, Do: func(n *Nemesis) error {
			defer n.Damage().Over()
			_, err := n.Node.Run("ip", "addr", "flush", "dev", "svcproxy0")
			return unlessMissing(err)
		}},
		{Name: "foreign drop first", Modes: "iptables", Do: p.foreignDrop},
		{Name: "disk full", Do: p.fillDisk},
		{Name: "disk does not answer", Do: p.holdDisk},
	}
}

// removeRule removes a jump to our rules, or all that a map has.
func (n *Nemesis) removeRule() error {
	if n.Mode != nftables {
		defer n.Damage().Over()
		_ = n.iptables(pick(n.r, n.tools()...), "-t nat -D PREROUTING -j SVCP-SERVICES") // it may be missing, after other damage
		return nil
	}
	family := pick(n.r, "ip", "ip6")
	out, err := n.Node.Run("nft", "list", "table", family, "svcproxy")
	if err != nil {
		return unlessMissing(err)
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
	return n.remove("flush map " + family + " svcproxy " + pick(n.r, maps...))
}

// remove does each of these, by a script of nft, to what is svcproxy's.
func (n *Nemesis) remove(scripts ...string) error {
	var errs []error
	for _, script := range scripts {
		errs = append(errs, unlessMissing(n.damage(script)))
	}
	return errors.Join(errs...)
}

// unlessMissing returns err, unless it says that something of svcproxy's is not there: other damage has removed it and it is
// not repaired yet, svcproxy has replaced it, or another mode is in use.
func unlessMissing(err error) error {
	if err != nil && (strings.Contains(err.Error(), "No such file") || strings.Contains(err.Error(), "does not exist")) {
		return nil
	}
	return err
}

// foreignDrop puts a rule before ours that drops what goes to endpoints. svcproxy steps over it.
func (p *Svcproxy) foreignDrop(n *Nemesis) error {
	if !n.mayContend() {
		return nil
	}
	damage := n.Damage()
	var err error
	for _, tool := range n.tools() {
		err = errors.Join(err, n.iptables(tool, "-I FORWARD -p tcp --dport 8080 -j DROP"))
	}
	damage.Over()
	n.pause(n.Unseen+4*time.Second, n.Unseen+5*time.Second)
	for _, tool := range n.tools() {
		err = errors.Join(err, n.iptables(tool, "-D FORWARD -p tcp --dport 8080 -j DROP"))
	}
	return err
}

// drain drains a host of endpoints for a while. It is asked again where svcproxy does not answer, or no service has the
// endpoint just now.
func (p *Svcproxy) drain(n *Nemesis) error {
	h := pick(n.r, slices.Concat(n.Local, n.Remote)...)
	tell := func(word string, drained bool) error {
		return n.Hosts[h.Addr().V4].Drained.Change(drained, 0, func() error {
			return pace.Poll(drainPatience, func() error {
				for _, a := range h.Addr().Each() {
					if _, err := p.Command(word, a.String()); err != nil && (strings.Contains(err.Error(), "until svcproxy restarts") || !strings.Contains(err.Error(), "is not drained")) {
						return err
					}
				}
				return nil
			})
		})
	}
	_ = tell("drain", true) // without it, the history knows that both is possible
	n.pause(time.Second, 4*time.Second)
	return tell("undrain", false)
}

// drainPatience is how long a drain is asked for, while svcproxy is ended, killed or frozen.
const drainPatience = 10 * time.Second

// fillDisk leaves no room in the state directory for a while.
func (p *Svcproxy) fillDisk(n *Nemesis) error {
	p.disk.Lock()
	defer p.disk.Unlock()
	empty, err := p.fill()
	n.pause(500*time.Millisecond, 2*time.Second)
	return errors.Join(err, empty())
}

// fill leaves no room in the state directory until empty is called.
func (p *Svcproxy) fill() (empty func() error, err error) {
	path := filepath.Join(p.StateDir(), "full")
	empty = func() error { return os.Remove(path) }
	f, err := os.Create(path)
	if err != nil {
		return empty, err
	}
	defer f.Close()
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(chunk)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = nil
	}
	return empty, err
}

// holdDisk has the state directory not answer for a while. Changes wait for that, two seconds at most.
func (p *Svcproxy) holdDisk(n *Nemesis) error {
	p.disk.Lock()
	defer p.disk.Unlock()
	defer n.Clock.Disturb()()
	answer, err := disktest.Slow(p.StateDir())
	if err != nil {
		return err
	}
	defer answer()
	n.pause(time.Second, 4*time.Second)
	return nil
}
