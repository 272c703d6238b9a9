package history

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// A History is all that happened in one episode.
type History struct {
	Clock Clock

	// What modes cannot have in common, see docs/packets.md.
	Bound bool // external addresses are ones of the host: ipvs mode
	Steps bool // the parts of a change are written one after the other: all modes but nftables

	// Unseen is for how long what others break may not be seen: five seconds in iptables-legacy, whose rules are looked at
	// more rarely the longer it takes.
	Unseen time.Duration

	Host     *Fact[policy.Host]
	Services map[string]*Fact[*source.Service] // nil: there is none
	Hosts    map[netip.Addr]*Endpoint          // by the addresses of endpoints

	mu       sync.Mutex
	damages  []*Span // nil: withdrawn
	changes  []Span  // of the mode
	did      []string
	restarts []time.Time
	ends     []time.Time // of svcproxy
	cuts     []time.Time // of all virtual servers, with which the kernel ends connections
	attempts []Attempt

	before []Attempt // of earlier episodes, of which connection tracking may know the ports
}

// An Endpoint is what the history knows of one address. A check finds out within detection.
type Endpoint struct {
	Alive   *Fact[bool]
	Drained *Fact[bool]
}

// detection is how long checks take to find an endpoint alive or dead: two intervals of 200 ms and their timeouts.
const detection = time.Second

// An Attempt is one connection or datagram, and what came of it.
type Attempt struct {
	Kind    string // of client
	Service string // that it was addressed to
	Packet  policy.Packet
	Port    uint16 // of the client; 0: not known

	Start, End time.Time // End: the answer, or the end of patience
	Got        lab.Answer
	By         netip.Addr // the endpoint that answered
	Own        bool       // the endpoint saw the client's own address

	Flow bool // it goes on from datagrams before
	Died bool // it is the end of an established connection, which was made at Start and went to By
}

func (a *Attempt) String() string {
	return fmt.Sprintf("%s %s: %s from %s (port %d) to %s: %s, %s to %s", a.Kind, a.Service, a.Packet.Protocol, a.Packet.From, a.Port, a.Packet.To, a.Got,
		a.Start.UTC().Format(stamp), a.End.UTC().Format(stamp))
}

const stamp = "15:04:05.000"

// Add writes an attempt down.
func (h *History) Add(a Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts = append(h.attempts, a)
}

// A Damage is a time in which what svcproxy has in the kernel is broken by others, or a file by its writer. What new
// connections meet then is not judged.
type Damage struct {
	h *History
	i int
}

// Damage notes that something is broken from now on.
func (h *History) Damage() Damage {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.damages = append(h.damages, &Span{From: time.Now()})
	return Damage{h, len(h.damages) - 1}
}

// Over notes that nobody breaks anything any more, after which svcproxy has its time to react.
func (d Damage) Over() {
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	d.h.damages[d.i].Until = time.Now()
}

// Withdraw notes that it was over before anybody could see it.
func (d Damage) Withdraw() {
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	d.h.damages[d.i] = nil
}

// Changes notes that the mode changes from now on, until done is called.
func (h *History) Changes() (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, Span{From: time.Now()})
	i := len(h.changes) - 1
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.changes[i].Until = time.Now()
	}
}

// Ends notes that svcproxy is ended now.
func (h *History) Ends() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, time.Now())
}

// Cuts notes that others are about to remove all virtual servers. The kernel ends a connection of which a packet arrives
// before they are there again (expire_nodest_conn), as docs/modes.md says.
func (h *History) Cuts() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cuts = append(h.cuts, time.Now())
}

// Restarted notes that svcproxy starts again, and with it checks of endpoints that it did not know.
func (h *History) Restarted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.restarts = append(h.restarts, time.Now())
}

// Did notes a step of the nemesis.
func (h *History) Did(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, time.Now().UTC().Format(stamp)+" "+what)
}

// Story returns the steps of the nemesis, with their times.
func (h *History) Story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.did, "\n")
}
