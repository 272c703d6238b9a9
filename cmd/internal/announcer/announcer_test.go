package announcer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wire writes what routers and neighbours are told.
type wire struct {
	mu    sync.Mutex
	lines []string
	fail  error // of opening
}

func (w *wire) write(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if n := len(w.lines); n == 0 || w.lines[n-1] != line {
		w.lines = append(w.lines, line)
	}
}

func (w *wire) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.lines, want) {
		t.Errorf("told\n got: %q\nwant: %q", w.lines, want)
	}
	w.lines = nil
}

func (w *wire) open(b configs.BGP, peers Peers) (Speaker, error) {
	w.mu.Lock()
	err := w.fail
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.write("open %d %s %v", b.AS, b.RouterID, peers)
	return &speaker{wire: w, peers: peers, stop: make(chan bool, 1), ended: make(chan struct{}), crash: make(chan error, 1)}, nil
}

// A speaker says what it is told.
type speaker struct {
	*wire
	peers Peers
	stiff bool // it cannot have other peers
	quiet bool // nothing has failed
	last  string
	stop  chan bool
	ended chan struct{}
	crash chan error
}

func (s *speaker) Run(context.Context) error {
	defer close(s.ended)
	select {
	case graceful := <-s.stop:
		s.write("stop graceful=%v", graceful)
		return nil
	case err := <-s.crash:
		return err
	}
}

func (s *speaker) SetRoutes(list []Route) error {
	var words []string
	for _, r := range list {
		word := r.Addr.String()
		if r.Shutdown {
			word += "!"
		}
		words = append(words, word)
	}
	if text := "routes " + strings.Join(words, " "); text != s.last {
		s.last = text
		s.write("%s", text)
	}
	return nil
}

func (s *speaker) SetPeers(b configs.BGP, peers Peers) (bool, error) {
	if s.stiff {
		return false, nil
	}
	s.peers = peers
	s.write("peers %v %v", peers, b.Communities)
	return true, nil
}

func (s *speaker) Stop(graceful bool) {
	s.stop <- graceful
	<-s.ended
}

func (s *speaker) Sessions(bool) (list []Session) {
	last := "a\x1bb"
	if s.quiet {
		last = ""
	}
	for p := range s.peers {
		list = append(list, Session{Peer: p, State: Established, LastError: last})
	}
	return list
}

// neighbours are those of a network.
type neighbours struct{ *wire }

func (n neighbours) Set(list []netip.Addr) { n.write("neighbours %v", list) }

func (n neighbours) Unanswered() map[netip.Addr]string {
	return map[netip.Addr]string{netip.MustParseAddr("203.0.113.9"): "no link"}
}

var peerAddr = netip.MustParseAddr("192.0.2.254")

func bgpTo(peers ...configs.BGPPeer) configs.BGP {
	return configs.BGP{AS: 64512, OnStop: "graceful", Peers: peers}
}

// begin runs an Announcer in a synctest bubble until end is called, or the test is over.
func begin(t *testing.T, w *wire, b configs.BGP, edit ...func(*Config)) (a *Announcer, ready func(), end func()) {
	cfg := Config{
		Log: slog.New(slog.DiscardHandler), BGP: b, Open: w.open,
		RouterID: func() netip.Addr { return netip.MustParseAddr("192.0.2.1") },
	}
	for _, f := range edit {
		f(&cfg)
	}
	a = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	go0, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); a.Run(ctx, go0) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return a, func() { close(go0) }, end
}

func change(addr string, m source.Means, how ...announce.Loss) []announce.Change {
	c := announce.Change{Addr: netip.MustParseAddr(addr), Means: m}
	if len(how) > 0 {
		c.Loss = how[0]
	}
	return []announce.Change{c}
}

// Nothing is told before the first complete sync, and then all at once.
func TestNothingBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		a, ready, end := begin(t, w, bgpTo(configs.BGPPeer{Address: peerAddr, AS: 64500}))
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		a.Announce(policy.IPv6, change("2001:db8::1", source.BGP))
		time.Sleep(time.Hour)
		w.expect(t)
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 2001:db8::1")
		end()
		w.expect(t, "stop graceful=true")
	})
}

// A daemon that ends before the first complete sync takes nothing back.
func TestEndBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		b := bgpTo(configs.BGPPeer{Address: peerAddr})
		b.OnStop = "withdraw"
		_, _, end := begin(t, w, b)
		end()
		w.expect(t)
	})
}

// What is wanted while the kernel serves is marked first, everything else goes at once.
func TestShutdownBeforeWithdrawal(t *testing.T) {
	drained, removed := announce.Loss{Wanted: true, Serves: true}, announce.Loss{Wanted: true}
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		a, ready, _ := begin(t, w, bgpTo(configs.BGPPeer{Address: peerAddr}))
		for _, addr := range []string{"203.0.113.1", "203.0.113.2", "203.0.113.3"} {
			a.Announce(policy.IPv4, change(addr, source.BGP))
		}
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 203.0.113.2 203.0.113.3")
		a.Announce(policy.IPv4, change("203.0.113.1", 0, drained))
		w.expect(t, "routes 203.0.113.1! 203.0.113.2 203.0.113.3")
		a.Announce(policy.IPv4, change("203.0.113.2", 0, removed))
		w.expect(t, "routes 203.0.113.1! 203.0.113.3")
		a.Announce(policy.IPv4, change("203.0.113.3", 0))
		w.expect(t, "routes 203.0.113.1!")
		time.Sleep(ShutdownTime - time.Millisecond)
		w.expect(t)
		time.Sleep(2 * time.Millisecond)
		w.expect(t, "routes ")
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		w.expect(t, "routes 203.0.113.1")
		a.Announce(policy.IPv4, change("203.0.113.1", source.L2, drained))
		w.expect(t, "routes 203.0.113.1!")
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		w.expect(t, "routes 203.0.113.1")
		time.Sleep(time.Minute)
		w.expect(t)
		a.Announce(policy.IPv4, change("203.0.113.1", 0, drained))
		a.Announce(policy.IPv4, change("203.0.113.1", 0)) // it fails meanwhile
		w.expect(t, "routes ")
	})
}

// on_stop = "withdraw" marks routes, waits a moment, and takes them back.
func TestWithdrawAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		b := bgpTo(configs.BGPPeer{Address: peerAddr})
		b.OnStop = "withdraw"
		a, ready, end := begin(t, w, b)
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1")
		began := time.Now()
		end()
		w.expect(t, "routes 203.0.113.1!", "routes ", "stop graceful=false")
		if took := time.Since(began); took != stopTime {
			t.Errorf("it took %v", took)
		}
	})
}

// What a drain takes back goes at the end, too, though routers keep the rest.
func TestDrainedAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		a, ready, end := begin(t, w, bgpTo(configs.BGPPeer{Address: peerAddr}))
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		a.Announce(policy.IPv4, change("203.0.113.2", source.BGP))
		ready()
		a.Announce(policy.IPv4, change("203.0.113.1", 0, announce.Loss{Wanted: true, Serves: true}))
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1! 203.0.113.2")
		end()
		w.expect(t, "routes 203.0.113.2", "stop graceful=true")
	})
}

// Other settings begin other sessions, and a Speaker that fails is tried again, but not all the time.
func TestSpeakerFollowsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		a, ready, _ := begin(t, w, configs.BGP{})
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		ready()
		w.expect(t)
		if got := a.Unavailable(source.BGP); got != "no [bgp] in svcproxy.toml" {
			t.Errorf("without settings: %q", got)
		}
		w.fail = errors.New("port 179 is taken\x1b")
		a.Use(bgpTo(configs.BGPPeer{Address: peerAddr, AS: 1}))
		w.expect(t)
		if got := a.Unavailable(source.BGP); got != `port 179 is taken\x1b` {
			t.Errorf("while it fails: %q", got)
		}
		if s := a.Sessions(); len(s) != 1 || s[0].Up() || s[0].State != "idle" {
			t.Errorf("while it fails: %+v", s)
		}
		w.fail = nil
		a.Announce(policy.IPv4, change("203.0.113.2", source.BGP))
		w.expect(t) // not before its time
		time.Sleep(retry)
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 203.0.113.2")
		if got := a.Unavailable(source.BGP); got != "" {
			t.Errorf("while it works: %q", got)
		}
		same := bgpTo(configs.BGPPeer{Address: peerAddr, AS: 1})
		a.Use(same)
		same.OnStop = "withdraw" // no session depends on it
		a.Use(same)
		w.expect(t)
		more := bgpTo(configs.BGPPeer{Address: peerAddr, AS: 1})
		more.AS = 64513
		a.Use(more)
		w.expect(t, "stop graceful=true", "open 64513 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 203.0.113.2")
		run, _, _ := a.routers.inUse()
		run.speaker.(*speaker).crash <- errors.New("out of memory")
		synctest.Wait()
		if got := a.Unavailable(source.BGP); got != "BGP ended: out of memory" {
			t.Errorf("after its end: %q", got)
		}
		time.Sleep(retry)
		w.expect(t, "open 64513 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 203.0.113.2")
		a.Use(configs.BGP{})
		w.expect(t, "stop graceful=false") // no other one follows that would renew the routes
		if got := a.Sessions(); got != nil {
			t.Errorf("without settings: %+v", got)
		}
		a.Use(more)
		w.expect(t, "open 64513 192.0.2.1 map[192.0.2.254:]", "routes 203.0.113.1 203.0.113.2")
		a.Use(configs.BGP{AS: 64513})
		w.expect(t, "stop graceful=false")
	})
}

// A router whose password cannot be used is left out, and the others have their sessions.
func TestPasswordsOfPeers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	fatal.If(t, os.WriteFile(path, []byte("s3cret"), 0o644))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		other := netip.MustParseAddr("2001:db8::254")
		a, ready, _ := begin(t, w, bgpTo(configs.BGPPeer{Address: peerAddr, PasswordFile: path}, configs.BGPPeer{Address: other}))
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[2001:db8::254:]", "routes ")
		s := a.Sessions()
		if len(s) != 2 || s[0].Up() || !strings.Contains(s[0].LastError, "mode 0644") || !s[1].Up() || s[1].LastError != `a\x1bb` {
			t.Errorf("%+v", s)
		}
		fatal.If(t, os.Chmod(path, 0o600))
		a.Reload()
		w.expect(t, "peers map[192.0.2.254:s3cret 2001:db8::254:] []")
		if s := a.Sessions(); len(s) != 2 || !s[0].Up() {
			t.Errorf("with the password: %+v", s)
		}
		a.Reload()
		w.expect(t)
	})
}

// Neighbours are told of what is announced by L2.
func TestNeighboursLearnAnnouncedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		a, ready, _ := begin(t, w, configs.BGP{})
		if got := a.Unavailable(source.L2); got != "neighbours cannot be told" {
			t.Error(got)
		}
		a.cfg.Neighbours = neighbours{w}
		a.Announce(policy.IPv4, change("203.0.113.9", source.L2|source.BGP))
		ready()
		w.expect(t, "neighbours [203.0.113.9]")
		if got := a.Unavailable(source.L2) + a.Unanswered()[netip.MustParseAddr("203.0.113.9")]; got != "no link" {
			t.Error(got)
		}
		a.Announce(policy.IPv4, change("203.0.113.9", 0))
		w.expect(t, "neighbours []")
	})
}

// The log names what it can in a line, whatever the number of addresses.
func TestLogLineIsBounded(t *testing.T) {
	var out bytes.Buffer
	a := New(Config{Log: slog.New(slog.NewTextHandler(&out, nil))})
	var list []announce.Change
	for i := range 12 {
		list = append(list, announce.Change{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Means: source.BGP})
	}
	list = append(list, change("203.0.113.98", 0, announce.Loss{Wanted: true})...)
	list = append(list, change("203.0.113.99", 0)...)
	a.Announce(policy.IPv4, list)
	var got []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(line, "level=")
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{
		`INFO msg="addresses announced" family=ipv4 addresses="[203.0.113.0 203.0.113.1 203.0.113.2 203.0.113.3 203.0.113.4 203.0.113.5 203.0.113.6 203.0.113.7 203.0.113.8 203.0.113.9] and 2 more"`,
		`INFO msg="addresses withdrawn, as asked for" family=ipv4 addresses=[203.0.113.98]`,
		`WARN msg="addresses withdrawn: they cannot be used here" family=ipv4 addresses=[203.0.113.99]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
