package announcer

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/configs"
)

// Peers are the routers that a Speaker is opened with, with their passwords. It has no others.
type Peers map[netip.Addr]string

// retry is after how long a Speaker that cannot be opened, or has ended, is tried again, and a password that cannot be read.
const retry = 10 * time.Second

// A secret is a password as it was last read.
type secret struct{ file, password string }

// A lack is why the password of a router cannot be read now.
type lack struct {
	why  string
	kept bool // the one that was last read is used; else the router is left out
}

// passwords are those of routers that settings name. Only unusable is not of the goroutine of Announcer.Run.
type passwords struct {
	log    *slog.Logger
	known  map[netip.Addr]secret
	readAt time.Time // when those that cannot be read are read again

	mu       sync.Mutex
	unusable map[netip.Addr]lack // those that cannot be read, as logged; another map for each change
}

// read returns the routers that can be talked to. A password that cannot be read now is as it was last read from that
// file, which may be replaced just now: without it the router would drop all routes of this host.
func (w *passwords) read(b configs.BGP) Peers {
	peers, known, unusable := make(Peers), make(map[netip.Addr]secret), make(map[netip.Addr]lack)
	for i := range b.Peers {
		p := &b.Peers[i]
		password, err := p.Password()
		found, kept := secret{p.PasswordFile, password}, false
		if err != nil {
			found, kept = w.lastRead(p)
			unusable[p.Address] = lack{err.Error(), kept}
		}
		if err == nil || kept {
			peers[p.Address], known[p.Address] = found.password, found
		}
	}
	w.known, w.readAt = known, time.Now().Add(retry)
	w.logUsable(peers, unusable)
	w.recordUnusable(unusable)
	return peers
}

// lastRead returns what was last read from the file that a router has; false: nothing.
func (w *passwords) lastRead(p *configs.BGPPeer) (secret, bool) {
	last, ok := w.known[p.Address]
	return last, ok && last.file == p.PasswordFile
}

// recordUnusable keeps which passwords cannot be read, and logs it when that is new.
func (w *passwords) recordUnusable(now map[netip.Addr]lack) {
	for addr, l := range now {
		switch {
		case w.unusable[addr] == l:
		case l.kept:
			w.log.Warn("cannot read the password of a BGP peer; using the previous one", "err", l.why, "retry", retry)
		default:
			w.log.Error("cannot announce addresses to a BGP peer", "err", l.why, "retry", retry)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unusable = now
}

// logUsable logs which passwords could not be read before, and can now.
func (w *passwords) logUsable(peers Peers, now map[netip.Addr]lack) {
	for addr, l := range w.unusable {
		_, still := now[addr]
		_, wanted := peers[addr]
		switch {
		case still || !wanted:
		case l.kept:
			w.log.Info("the password of a BGP peer can be read again", "peer", addr)
		default:
			w.log.Info("BGP peer re-enabled", "peer", addr)
		}
	}
}

// rereads reports whether it is time to read passwords again that could not be read.
func (w *passwords) rereads() bool { return len(w.unusable) > 0 && !time.Now().Before(w.readAt) }

// forget forgets all when BGP is not used any more.
func (w *passwords) forget() {
	w.known = nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unusable = nil
}

// lacks says which cannot be read, and why.
func (w *passwords) lacks() map[netip.Addr]lack {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unusable
}
