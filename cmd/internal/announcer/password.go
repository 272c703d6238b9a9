package announcer

import (
	"maps"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/configs"
)

// A secret is a password as it was last read.
type secret struct{ file, password string }

// A lack is why the password of a router cannot be read now.
type lack struct {
	why  string
	kept bool // the one that was last read is used; else the router is left out
}

// passwords returns the routers that can be talked to. A password that cannot be read now is as it was last read from that
// file, which may be replaced just now: without it the router would drop all routes of this host.
func (a *Announcer) passwords(b configs.BGP) Peers {
	peers, known, unusable := make(Peers), make(map[netip.Addr]secret), make(map[netip.Addr]lack)
	for i := range b.Peers {
		p := &b.Peers[i]
		password, err := p.Password()
		found, kept := secret{p.PasswordFile, password}, false
		if err != nil {
			found, kept = a.lastRead(p)
			unusable[p.Address] = lack{err.Error(), kept}
		}
		if err == nil || kept {
			peers[p.Address], known[p.Address] = found.password, found
		}
	}
	a.known, a.readAt = known, time.Now().Add(retry)
	a.logUsable(peers, unusable)
	a.noteUnusable(unusable)
	return peers
}

// lastRead returns what was last read from the file that a router has; false: nothing.
func (a *Announcer) lastRead(p *configs.BGPPeer) (secret, bool) {
	last, ok := a.known[p.Address]
	return last, ok && last.file == p.PasswordFile
}

// noteUnusable keeps which passwords cannot be read, and logs it when that is new.
func (a *Announcer) noteUnusable(now map[netip.Addr]lack) {
	for addr, l := range now {
		switch {
		case a.unusable[addr] == l:
		case l.kept:
			a.cfg.Log.Warn("the password of a router cannot be read: the one of before is used", "err", l.why, "retry", retry)
		default:
			a.cfg.Log.Error("a router is not told of addresses", "err", l.why, "retry", retry)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unusable = now
}

// logUsable logs which passwords could not be read before, and can now.
func (a *Announcer) logUsable(peers Peers, now map[netip.Addr]lack) {
	for addr, l := range a.unusable {
		_, still := now[addr]
		_, wanted := peers[addr]
		switch {
		case still || !wanted:
		case l.kept:
			a.cfg.Log.Info("the password of a router can be read again", "peer", addr)
		default:
			a.cfg.Log.Info("a router is not left out any more", "peer", addr)
		}
	}
}

// rereads reports whether it is time to read passwords again that could not be read.
func (a *Announcer) rereads() bool { return len(a.unusable) > 0 && !time.Now().Before(a.readAt) }

// differs reports whether passwords are others than those in use.
func (a *Announcer) differs(run *running, b configs.BGP) bool {
	return run == nil || !maps.Equal(a.passwords(b), run.peers)
}

// forget forgets what was logged, and passwords, when BGP is not used any more.
func (a *Announcer) forget() {
	a.logged, a.known = "", nil
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unusable = nil
}
