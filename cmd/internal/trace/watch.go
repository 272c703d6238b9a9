package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
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

	pending map[number]*sighting
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
	w := &watcher{Options: o, ctx: ctx, pending: make(map[number]*sighting), byID: make(map[uint32]*sighting), asked: time.Now()}
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

// install adds a table for each family that matters.
func (w *watcher) install() error {
	for _, fam := range w.Names.Families {
		if f := w.Filter; f.Destination.IsValid() && policy.FamilyOf(f.Destination) != fam || f.Source.IsValid() && policy.FamilyOf(f.Source.Addr()) != fam {
			continue
		}
		r := &rules{dialect: dialects[fam], group: w.log.Group, chains: w.Chains}
		if loud := chainsLoud(fam); w.Chains && loud != "" {
			r.chains = false
			w.Note(loud)
		}
		if err := w.add(r); err != nil {
			return fmt.Errorf("adding the table of a trace, %s: %w", fam, err)
		}
		w.tables = append(w.tables, r)
	}
	if len(w.tables) == 0 {
		return errors.New("nothing to trace: this address family is not served")
	}
	return nil
}

// nameTries is how many tables of one process id there may be: of other pid namespaces,
// or left where process ids repeat.
const nameTries = 16

// add adds the table of one family, owned where the kernel knows that. A name is taken by a
// table of a socket: EPERM, or of none: EEXIST.
func (w *watcher) add(r *rules) error {
	for i, owned := 0, true; ; {
		r.table = nft.Table{Family: r.number, Name: fmt.Sprint(tablePrefix, os.Getpid())}
		if i > 0 {
			r.table.Name += fmt.Sprint("-", i)
		}
		r.batch = nft.NewBatch(r.table)
		r.fill(w.Filter, w.Names, owned)
		if r.err != nil {
			return r.err
		}
		err := w.conn.Commit(r.batch)
		switch {
		case (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM)) && i < nameTries:
			i++
		case owned && nft.IsUnknownFlag(err):
			owned = false
		default:
			return err
		}
	}
}

// remove removes the tables. One that is gone is no error.
func (w *watcher) remove() error {
	var errs []error
	for _, r := range w.tables {
		b := nft.NewBatch(r.table)
		b.DeleteTable()
		if err := w.conn.Commit(b); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing table %s: %w", r.table.Name, err))
		}
	}
	w.tables = nil
	return errors.Join(errs...)
}

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
	n := number{p.Family, p.Mark}
	s := w.pending[n]
	switch {
	case !ok:
	case p.Prefix == seenUntracked:
		w.emit(&sighting{conn: conn, now: conn, at: time.Now(), in: interfaceName(p.In), where: p.Prefix})
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
func (w *watcher) begin(n number, p *nft.LoggedPacket, conn tuple) {
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
	w.emit(s)
}

func (w *watcher) forget(s *sighting) {
	delete(w.pending, s.number)
	for _, id := range s.traces {
		delete(w.byID, id)
	}
}

func (w *watcher) emit(s *sighting) {
	l := s.line(w.Names)
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
		w.lines++
		w.failed = w.Line(&l)
	}
}

// count notes how many packets were left out.
func (w *watcher) count() error {
	var out uint64
	for _, r := range w.tables {
		counts, err := w.conn.Counters(r.table, selectChain)
		if err != nil {
			return err
		}
		if len(counts) != 2 {
			return fmt.Errorf("table %s is gone: another program removed it", r.table.Name)
		}
		out += leftOut(counts[0], counts[1])
	}
	if out > w.left {
		w.Note(fmt.Sprintf("%d packets were left out: more than %d a second", out-w.left, perSecond))
		w.left = out
	}
	return nil
}

// leftOut returns how many of all packets were not chosen. The kernel reads one counter after the other: of packets that
// come in between, only the second knows.
func leftOut(all, chosen uint64) uint64 { return all - min(all, chosen) }

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
