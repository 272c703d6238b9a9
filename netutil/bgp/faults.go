package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A tap is the log of GoBGP. GoBGP says there, and only there, why a connection of ours failed and which
// notifications were sent and received; note hears of these. Warnings and errors go on to out, the rest ends here.
// It also is where updates are made small before GoBGP keeps them, see strip.
type tap struct {
	out   slog.Handler
	peer  netip.Addr // from the attribute Key
	note  func(peer netip.Addr, m message)
	full  func(peer netip.Addr) bool // no more routes of it are kept
	limit *limiter
}

func newTap(out slog.Handler, note func(netip.Addr, message), full func(netip.Addr) bool) *tap {
	return &tap{out: out, note: note, full: full, limit: &limiter{last: map[repeated]*repeats{}}}
}

// A message is a record of GoBGP's log that says something about a session.
type message struct {
	text          string // as GoBGP writes it
	err           string
	code, subcode int64
	reason        string // what the administrator of the peer wrote, RFC 9003
}

// The texts of GoBGP 4.8 that matter, all of pkg/server/fsm.go but the last, of server.go.
const (
	textNoConnection = "failed to connect"
	textClosedEarly  = "outgoing connection IO error"
	textSent         = "sent notification"
	textReceived     = "received notification"
	textHoldTimer    = "hold timer expired"
	textNoPassword   = "failed to set md5"
	textOpenSent     = "outgoing connection established"
	textUpdate       = "received update"
)

// quiet are errors of GoBGP that are none here.
const textStopTwice = "failed to stop BGP server"

// Enabled is true for all levels: failed connections are logged at the lowest.
func (t *tap) Enabled(context.Context, slog.Level) bool { return true }

func (t *tap) WithGroup(name string) slog.Handler {
	c := *t
	c.out = t.out.WithGroup(name)
	return &c
}

func (t *tap) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *t
	c.out = t.out.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == "Key" {
			c.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return &c
}

func (t *tap) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case textNoConnection, textClosedEarly, textSent, textReceived, textHoldTimer, textNoPassword, textOpenSent:
		t.note(t.read(r))
		return nil
	case textUpdate:
		strip(r, t.full(t.peer.Unmap()))
		return nil
	}
	if r.Level < slog.LevelWarn || r.Message == textStopTwice || !t.out.Enabled(ctx, r.Level) {
		return nil
	}
	peer, m := t.read(r)
	leftOut, some := t.limit.allow(repeated{peer, m.text}, time.Now())
	if !some {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.Add("left_out", leftOut)
	}
	return t.out.Handle(ctx, r)
}

func (t *tap) read(r slog.Record) (netip.Addr, message) {
	peer, m := t.peer, message{text: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "Key":
			peer, _ = netip.ParseAddr(a.Value.String())
		case "Error", "Err":
			m.err = a.Value.String()
		case "Code":
			m.code = a.Value.Int64()
		case "Subcode":
			m.subcode = a.Value.Int64()
		case "Communicated-Reason":
			m.reason = a.Value.String()
		}
		return true
	})
	return peer, m
}

// attempt reports whether m is about a connection of ours that never became a session.
func (m message) attempt() bool { return m.text == textNoConnection || m.text == textClosedEarly }

// words says what m means for a session to p, for an operator.
func (m message) words(ourAS uint32, p Peer) string {
	switch m.text {
	case textNoConnection:
		return connectWords(m.err, p)
	case textClosedEarly:
		return refusedWords(ourAS)
	case textHoldTimer:
		return fmt.Sprintf("hold timer expired: nothing heard from the peer for the hold time, of which we asked for %v", p.HoldTime)
	case textNoPassword:
		return "setting the password of the listening socket: " + m.err
	case textReceived:
		return "the peer closed the session: " + m.notification()
	}
	switch {
	case m.code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && m.subcode == bgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return fmt.Sprintf("wrong AS: the peer is not in AS %d, which is configured for it here", p.AS)
	case m.code == bgp.BGP_ERROR_FSM_ERROR:
		return refusedWords(ourAS) // anything but OPEN came as an answer to ours
	case m.code == bgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return message{text: textHoldTimer}.words(ourAS, p)
	}
	return "we closed the session: " + m.notification()
}

// names are those in "code 6(cease) subcode 2(administrative shutdown)".
var names = regexp.MustCompile(`code (\d+)\((.*)\) subcode (\d+)\((.*)\)`)

// notification returns what a notification says, such as "6/2, cease, administrative shutdown".
func (m message) notification() string {
	s := bgp.NewNotificationErrorCode(uint8(m.code), uint8(m.subcode)).String()
	s = names.ReplaceAllString(s, "$1/$3, $2, $4")
	if m.reason != "" {
		s += fmt.Sprintf(", with the words %q", m.reason)
	}
	return s
}

// silentWords is for a peer that does not answer.
const silentWords = "the peer accepts connections, and has not answered our OPEN: is BGP what listens there, and does it know our address and AS?"

// refusedWords is for a peer that ends the connection instead of agreeing to our OPEN. GoBGP
// drops the notification in which it may say why.
func refusedWords(ourAS uint32) string {
	return fmt.Sprintf("the peer refused our OPEN: wrong AS, if it expects another one than %d, or it does not know our address; its log says which", ourAS)
}

// connectWords says why there is no TCP connection. A peer whose password differs
// drops our segments, which is seen as silence.
func connectWords(err string, p Peer) string {
	where := netip.AddrPortFrom(p.Address, p.Port)
	_, cause, _ := strings.Cut(err, ": ") // dial tcp A->B: connect: why
	cause = strings.TrimPrefix(cause, "connect: ")
	switch {
	case strings.Contains(err, "timeout") && p.Password != "":
		return fmt.Sprintf("no answer from %v; a wrong password looks the same", where)
	case strings.Contains(err, "timeout"):
		return fmt.Sprintf("no answer from %v; a peer that wants a password looks the same", where)
	case strings.Contains(err, "refused"):
		return fmt.Sprintf("connection refused by %v: nothing listens there, or it is told to refuse us", where)
	}
	return fmt.Sprintf("connecting to %v: %s", where, cause)
}

// endWords says why a session that was in a state has ended, for what GoBGP does not log.
func endWords(was State, reason api.PeerState_DisconnectReason, ourAS uint32) string {
	switch reason {
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG, api.PeerState_DISCONNECT_REASON_READ_FAILED,
		api.PeerState_DISCONNECT_REASON_WRITE_FAILED, api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		if was == OpenSent || was == OpenConfirm {
			return refusedWords(ourAS)
		}
		return "connection lost: the peer closed it without a word, or the network did"
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return "hold timer expired: nothing heard from the peer"
	}
	return ""
}

// placeholder stands for attributes that are not kept.
var placeholder = bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_INCOMPLETE)

// nobodys are routes that stand for those that are not kept. They are refused like all others.
var nobodys = [families]bgp.PathNLRI{mustNLRI("0.0.0.0/32"), mustNLRI("::/128")}

func mustNLRI(prefix string) bgp.PathNLRI {
	nlri, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix(prefix))
	if err != nil {
		panic(err) // both are prefixes
	}
	return bgp.PathNLRI{NLRI: nlri}
}

// strip takes from an UPDATE what GoBGP would keep of it although all of its routes are refused: large attributes and, where
// the peer is full, the routes. GoBGP has no setting for that. It logs each UPDATE just before it makes routes of it, with the slices that it is about to read.
// Withdrawn routes stay, and so does what validation and the next hop need.
func strip(r slog.Record, full bool) {
	r.Attrs(func(a slog.Attr) bool {
		switch list := a.Value.Any().(type) {
		case []bgp.PathAttributeInterface:
			stripAttributes(list, full)
		case []bgp.PathNLRI:
			if full && a.Key == "nlri" {
				for i := range list {
					list[i] = nobodys[ipv4]
				}
			}
		}
		return true
	})
}

func stripAttributes(list []bgp.PathAttributeInterface, full bool) {
	for i, a := range list {
		switch a := a.(type) {
		case *bgp.PathAttributeOrigin, *bgp.PathAttributeNextHop, *bgp.PathAttributeMpUnreachNLRI:
		case *bgp.PathAttributeMpReachNLRI:
			if full && len(a.Value) > 0 {
				f := ipv4
				if a.AFI == bgp.AFI_IP6 {
					f = ipv6
				}
				a.Value = []bgp.PathNLRI{nobodys[f]}
			}
		default:
			list[i] = placeholder
		}
	}
}

// logEvery is how often a line of GoBGP is logged that says the same of the same peer: a router that connects
// again and again makes dozens a second.
const logEvery = time.Minute

// A limiter leaves out log lines that repeat another one. Its methods may be called from any goroutine.
type limiter struct {
	mu   sync.Mutex
	last map[repeated]*repeats
}

// A repeated is what lines have in common: few are possible, as texts are of GoBGP, and peers are configured.
type repeated struct {
	peer netip.Addr
	text string
}

type repeats struct {
	at      time.Time // of the last line
	leftOut int       // since
}

// allow reports whether a line is to be logged, and how many were left out before it.
func (l *limiter) allow(key repeated, now time.Time) (leftOut int, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	if r != nil && now.Sub(r.at) < logEvery {
		r.leftOut++
		return 0, false
	}
	if r != nil {
		leftOut = r.leftOut
	}
	l.last[key] = &repeats{at: now}
	return leftOut, true
}
