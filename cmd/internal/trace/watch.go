// Package trace shows new connections to services as the kernel handles them.
//
// One design serves every mode. A table of its own logs the first packet of a
// connection where it enters the host, where it is routed and where it leaves,
// together with what connection tracking knows of it by then: its endpoint, and its new
// source. Refusals are seen as the answers that this host sends. A packet that neither
// leaves nor is answered was dropped. Why that is so, the services say.
//
// The table is owned by the socket of this process (kernel 5.12), so that it goes
// with it however the process ends. On an older kernel Remove finds it by its name.
//
//	names      what to show: whose an address is, and what becomes of packets to it
//	rules      the rules of the table
//	table      how it is added and removed, also that of a process that was killed
//	sighting   what was seen of one connection, and what it means, as a line
//	watch      receives, and tells lines
package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// Options say what to show, and to whom.
type Options struct {
	Filter Filter
	Count  int  // lines until it ends; 0: no end
	Chains bool // those that packets met, too

	Names *Names                                                     // as of now
	Ask   func(ctx context.Context, revision uint64) (*Names, error) // for newer ones; nil: they do not change
	Line  func(*Line) error
	Note  func(string) // what is to be known of all lines
}

const (
	firstGroup = 0x7ac0 // of logged packets: tools use low numbers
	tick       = 100 * time.Millisecond
	countEvery = time.Second
	finishTime = time.Second

	// Names are asked for again this often, and sooner for an endpoint that they do not know.
	renewEvery = 10 * time.Second
	// Without an answer, of a daemon that is stopped say, they are asked for later.
	renewSoon  = 2 * time.Second
	renewLater = time.Minute
	askTime    = 2 * time.Second

	maxPending = 4096 // connections of which more is to come
	maxSteps   = 64   // chains of one
)

// A watcher is one trace. It is used by one goroutine.
type watcher struct {
	Options
	ctx    context.Context
	log    *nft.PacketLog
	conn   *nft.Conn
	tables []*rules

	pending map[[2]uint32]*sighting
	byID    map[uint32]*sighting // by that of traces
	lines   int
	left    uint64 // out, as last said
	ignored int    // since it was last said
	failed  error  // of writing a line

	expired, counted, asked time.Time // last
}

// Run shows lines until ctx ends or there are as many as were asked for. What it has made
// in the kernel is gone when it returns.
func Run(ctx context.Context, o Options) (err error) {
	w := &watcher{Options: o, ctx: ctx, pending: make(map[[2]uint32]*sighting), byID: make(map[uint32]*sighting), asked: time.Now()}
	if w.log, err = nft.OpenPacketLog(firstGroup+uint16(os.Getpid()%1024), snap, o.Chains); err != nil {
		return err
	}
	defer w.log.Close()
	if w.conn, err = nft.Dial(); err != nil {
		return err
	}
	defer w.conn.Close()
	defer func() { err = errors.Join(err, w.remove()) }()
	if err := w.install(); err != nil {
		return err
	}
	for ctx.Err() == nil && !w.done() {
		if err := w.receive(); err != nil {
			return err
		}
	}
	return w.finish()
}

func (w *watcher) done() bool { return w.failed != nil || w.Count > 0 && w.lines >= w.Count }

// receive takes what comes within a tick, and once a second looks at the rest.
func (w *watcher) receive() error {
	drained, err := w.readTick()
	if err != nil {
		return err
	}
	now := time.Now()
	if drained && now.Sub(w.expired) >= tick {
		w.expired = now
		w.expire(now.Add(-patience))
	}
	if now.Sub(w.counted) < countEvery {
		return nil
	}
	w.counted = now
	w.reportIgnored()
	if err := w.count(); err != nil {
		return err
	}
	if now.Sub(w.asked) > renewEvery {
		w.renew()
	}
	return nil
}

// readTick takes what comes within a tick. It reports whether all of what was sent is read:
// only then is it known what did not come.
func (w *watcher) readTick() (drained bool, err error) {
	drained, err = w.log.Receive(time.Now().Add(tick), w.logged, w.traced)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return true, nil
	case errors.Is(err, unix.ENOBUFS):
		w.Note("events of the kernel were lost: some lines are missing")
		w.lost()
		return false, nil
	}
	return drained, err
}

// finish tells what is known when it is time to end. Events of other traces may go on: it
// takes a bounded time.
func (w *watcher) finish() error {
	err := w.remove()
	start := time.Now()
	for quiet := false; err == nil && !quiet && !w.done() && time.Since(start) < finishTime; {
		asked := time.Now()
		quiet, err = w.readTick()
		quiet = quiet && time.Since(asked) >= tick
	}
	if err == nil {
		w.expire(time.Now())
	}
	w.reportIgnored()
	return errors.Join(err, w.failed)
}

// logged takes up one packet.
func (w *watcher) logged(p *nft.LoggedPacket) {
	if w.done() {
		return
	}
	conn, ok := tupleOf(p.Family, p.Data)
	n := [2]uint32{uint32(p.Family), p.Mark}
	s := w.pending[n]
	switch {
	case !ok:
	case p.Prefix == seenUntracked:
		w.emit((&sighting{conn: conn, now: conn, at: time.Now(), in: interfaceName(p.In), where: p.Prefix}).line(w.Names))
	case p.Prefix == seenNew && s == nil:
		w.begin(n, p, conn)
	case p.Prefix == seenNew || s == nil:
		// On its way back through the loopback interface, another packet of it before an
		// answer, or known already.
	case p.Prefix == seenReset || p.Prefix == seenUnreachable:
		s.where = p.Prefix
		w.end(s)
	default:
		s.where, s.now = p.Prefix, conn
		if s.translated() && s.gone() {
			w.end(s)
		}
	}
}

// begin notes a new connection.
func (w *watcher) begin(n [2]uint32, p *nft.LoggedPacket, conn tuple) {
	if len(w.pending) >= maxPending {
		w.ignored++
		return
	}
	w.pending[n] = &sighting{number: n, conn: conn, now: conn, at: time.Now(), in: interfaceName(p.In), where: seenNew}
}

// reportIgnored notes how many connections there was no room for.
func (w *watcher) reportIgnored() {
	if w.ignored > 0 {
		w.Note(fmt.Sprintf("%d connections were left out: of %d others more is to come", w.ignored, maxPending))
		w.ignored = 0
	}
}

// expire ends what has been seen before a time, and did not go on.
func (w *watcher) expire(before time.Time) {
	for _, s := range w.pending {
		if s.at.Before(before) && !w.done() {
			w.end(s)
		}
	}
}

// end tells of a connection all that is known.
func (w *watcher) end(s *sighting) {
	w.forget(s)
	if _, known := w.Names.Endpoints[s.now.dst.Addr()]; s.translated() && !known && time.Since(w.asked) > renewSoon {
		w.renew()
	}
	w.emit(s.line(w.Names))
}

func (w *watcher) forget(s *sighting) {
	delete(w.pending, s.number)
	for _, id := range s.traces {
		delete(w.byID, id)
	}
}

func (w *watcher) emit(l Line) {
	w.lines++
	w.failed = w.Line(&l)
}

// lost says of all that is pending that it is not known.
func (w *watcher) lost() {
	for _, s := range w.pending {
		w.forget(s)
		if w.done() {
			continue
		}
		l := s.line(w.Names)
		l.Verdict, l.Why, l.Endpoint, l.Masquerade = Unknown, "events of the kernel were lost", "", ""
		w.emit(l)
	}
}

// renew asks for newer names, and adds the addresses that are new. Without an answer the
// names stay.
func (w *watcher) renew() {
	if w.Ask == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, askTime)
	defer cancel()
	n, err := w.Ask(ctx, w.Names.Revision)
	w.asked = time.Now()
	if err != nil {
		w.asked = w.asked.Add(renewLater)
	}
	if err != nil || n.Unchanged {
		return
	}
	w.Names = n
	for _, r := range w.tables {
		if w.Filter.Destination.IsValid() {
			continue
		}
		r.batch = nft.NewBatch(r.table)
		r.addAddresses(n)
		if err := w.conn.Commit(r.batch); err != nil {
			w.Note(fmt.Sprintf("addresses of new services are not traced: %v", err))
		}
	}
}

// traced takes up one step of a packet. The first step has the headers as they were sent.
func (w *watcher) traced(t *nft.Trace) {
	s := w.byID[t.ID]
	if s == nil {
		if s = w.sent(t); s == nil || len(s.traces) >= maxSteps {
			return
		}
		w.byID[t.ID], s.traces = s, append(s.traces, t.ID)
	}
	if strings.HasPrefix(t.Name, tablePrefix) || len(s.steps) >= maxSteps {
		return
	}
	now := step{familyName(t.Family) + " " + t.Name, t.Chain, t.Verdict}
	if now.verdict == "jump" || now.verdict == "goto" || now.verdict == "return" {
		now.verdict = "" // the next step says where
	}
	if n := len(s.steps); n > 0 && s.steps[n-1].table == now.table && s.steps[n-1].chain == now.chain {
		s.steps[n-1] = now
		return
	}
	s.steps = append(s.steps, now)
}

// sent returns what is pending with the headers of a trace.
func (w *watcher) sent(t *nft.Trace) *sighting {
	conn, ok := tupleOf(t.Family, slices.Concat(t.Network, t.Transport))
	if !ok {
		return nil
	}
	for _, s := range w.pending {
		if s.conn == conn {
			return s
		}
	}
	return nil
}

// interfaceName returns the name of an interface; empty: none. It asks for this one only:
// net.InterfaceByIndex lists all that the host has.
func interfaceName(index int) string {
	if index == 0 {
		return ""
	}
	request, _ := unix.NewIfreq("") // any name that is not too long
	request.SetUint32(uint32(index))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request)
	}
	if err != nil {
		return fmt.Sprint("interface ", index)
	}
	return request.Name()
}
