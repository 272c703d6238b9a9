package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

const (
	// lease is for how long counting goes on when nobody asks any more.
	lease = 15 * time.Second

	// idleShare is how much longer than a reading the pause after it is at least: readings
	// then cost less than a tenth of a processor, however much there is to read.
	idleShare = 9

	// followCheck is how often a session looks whether events are told, where they are not.
	followCheck = time.Second

	// retryFollowing is after what time events are asked for again that were unavailable.
	retryFollowing = 10 * time.Second
)

// Kernel is what a Collector needs of connection tracking.
type Kernel interface {
	// Connections calls each with every connection of a family that was translated.
	Connections(ctx context.Context, fam policy.Family, each func(Connection)) error

	// Follow opens what tells of connections, of both families, from then on. Without
	// ends it need not tell when they end. run calls each with every event until ctx ends, and lost when
	// it missed some, and closes it.
	Follow(ends bool) (run func(ctx context.Context, each func(Connection), lost func()) error, err error)

	// CountsPackets reports whether packets and bytes of new connections are counted.
	CountsPackets() bool
}

// A Collector reads what the kernel counts while a client asks. Its goroutine, Run,
// owns the book.
type Collector struct {
	kernel  Kernel
	serving func() []report.Family
	log     *slog.Logger

	asks   chan ask
	wanted chan Wanted
}

// Wanted says what is wanted of a Collector beside answers.
type Wanted struct {
	Always   bool // count also while nobody asks, for metrics
	Services int  // how many services metrics are of
}

// An ask is a question to Run.
type ask struct {
	age    time.Duration // how old what is known may be
	answer chan<- Report
	query  *Query // nil: what metrics want
	always bool   // only what is counted always
}

// NewCollector returns a Collector of what serving returns.
func NewCollector(kernel Kernel, serving func() []report.Family, log *slog.Logger) *Collector {
	return &Collector{kernel: kernel, serving: serving, log: log, asks: make(chan ask), wanted: make(chan Wanted, 1)}
}

// Want changes what is wanted. It does not block. One goroutine at a time may call it.
func (c *Collector) Want(w Wanted) {
	select {
	case <-c.wanted: // not looked at yet
	default:
	}
	c.wanted <- w
}

// Report returns the traffic of services, not older than age where that does not cost
// too much. Run must be running.
func (c *Collector) Report(ctx context.Context, q Query, age time.Duration) (Report, error) {
	if err := q.Check(); err != nil {
		return Report{}, err
	}
	return c.ask(ctx, ask{age: age, query: &q})
}

// Counted is Report where counting goes on always, and costs next to nothing. Elsewhere the
// Report is empty, its Time zero.
func (c *Collector) Counted(ctx context.Context, q Query) (Report, error) {
	if err := q.Check(); err != nil {
		return Report{}, err
	}
	return c.ask(ctx, ask{age: metricAge, query: &q, always: true})
}

func (c *Collector) ask(ctx context.Context, a ask) (Report, error) {
	answer := make(chan Report, 1)
	a.answer = answer
	select {
	case c.asks <- a:
	case <-ctx.Done():
		return Report{}, fmt.Errorf("reading what the kernel counts: %w", ctx.Err())
	}
	select {
	case r := <-answer:
		return r, nil
	case <-ctx.Done():
		return Report{}, fmt.Errorf("reading what the kernel counts: %w", ctx.Err())
	}
}

// Run answers until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	var w Wanted
	var s *session
	defer func() { s.end() }()
	idle := time.NewTimer(lease)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case w = <-c.wanted:
			if w.Always && s == nil {
				s = c.begin(ctx)
			}
		case <-idle.C:
			if !w.Always {
				s.end()
				s = nil
			}
			continue
		case <-s.checks():
			s.follow(ctx, nil)
			s.relieve()
			continue
		case a := <-c.asks:
			if a.always && !w.Always {
				a.answer <- Report{}
				continue
			}
			if s == nil {
				s = c.begin(ctx)
			}
			s.answer(ctx, a, w)
		}
		idle.Reset(lease)
	}
}

// A session is a time during which is counted.
type session struct {
	*Collector
	since    time.Time
	packets  bool
	problems []string // of the last reading
	check    *time.Ticker

	book  book
	tally tally
	began time.Time // of the last reading
	took  time.Duration

	following chan error         // has room for why events end; nil: they are not needed, or could not be opened
	cancel    context.CancelFunc // ends them
	failed    error              // why they could not
	retry     time.Time          // when to ask for them again
}

// begin begins to count.
func (c *Collector) begin(ctx context.Context) *session {
	s := &session{Collector: c, since: time.Now(), check: time.NewTicker(followCheck)}
	s.read(ctx)
	return s
}

// end ends the session, which may be nil.
func (s *session) end() {
	if s != nil {
		s.check.Stop()
		s.unfollow()
	}
}

func (s *session) unfollow() {
	if s.following != nil {
		s.cancel()
		<-s.following
		s.following = nil
	}
}

// checks tells when to look whether events are told. The session may be nil.
func (s *session) checks() <-chan time.Time {
	if s == nil {
		return nil
	}
	return s.check.C
}

// answer answers, after a reading where what is known is too old.
func (s *session) answer(ctx context.Context, a ask, w Wanted) {
	if time.Since(s.began) > max(a.age, s.took*(1+idleShare)) {
		s.read(ctx)
	}
	r := Report{Since: s.since, Packets: s.packets, Problems: s.problems, Lost: s.tally.losses()}
	if a.query == nil {
		s.book.metrics(w.Services, &r)
	} else {
		s.book.report(a.query, &r)
	}
	a.answer <- r
}

// read reads all that the kernel counts.
func (s *session) read(ctx context.Context) {
	s.began, s.problems = time.Now(), nil
	serving := s.serving()
	s.follow(ctx, serving)
	s.book.begin(serving)
	s.bookEvents()
	if s.failed != nil {
		s.problems = append(s.problems, "new connections are not counted: "+s.failed.Error())
	}
	failed := make(map[policy.Family]bool)
	for i := range serving {
		if err := s.readFamily(ctx, &serving[i]); err != nil {
			failed[serving[i].Family] = true
			s.problems = append(s.problems, err.Error())
		}
	}
	s.book.end(s.began, func(at netip.AddrPort) bool { return !failed[policy.FamilyOf(at.Addr())] })
	s.took = time.Since(s.began)
}

// relieve books what the kernel has told of where that is much, between two readings.
func (s *session) relieve() {
	if s.tally.full() {
		s.book.begin(s.serving())
		s.bookEvents()
	}
}

// bookEvents books what the kernel has told of since that was last done.
func (s *session) bookEvents() {
	for p, n := range s.tally.take() {
		s.book.ended(p, n)
	}
}

// readFamily books what there is of a family.
func (s *session) readFamily(ctx context.Context, f *report.Family) error {
	if counter, ok := f.Backend.(proxier.Counter); ok {
		var addrs []proxier.FrontendAddr
		for p := range f.FrontendAddrs() {
			addrs = append(addrs, p)
		}
		return counter.Count(ctx, addrs, s.book.there)
	}
	return s.kernel.Connections(ctx, f.Family, func(c Connection) {
		n := proxier.Count{Packets: c.Packets, Bytes: c.Bytes}
		if !c.Ended {
			n.Active = 1
		}
		s.book.there(c.Pair, n)
	})
}

// follow has events counted where a family needs that. serving may be nil.
func (s *session) follow(ctx context.Context, serving []report.Family) {
	if packets := s.kernel.CountsPackets(); packets != s.packets {
		s.unfollow() // now it matters, or no longer, when connections end
		s.packets = packets
	}
	select {
	case err := <-s.following:
		s.following = nil
		s.cannotFollow(err)
	default:
	}
	if s.following != nil && serving == nil || time.Now().Before(s.retry) {
		return
	}
	if serving == nil {
		serving = s.serving()
	}
	// There is no family yet when a daemon starts: one that counts by itself tells later.
	needed := len(serving) == 0 || slices.ContainsFunc(serving, func(f report.Family) bool {
		_, counts := f.Backend.(proxier.Counter)
		return !counts
	})
	switch {
	case !needed:
		s.unfollow()
	case s.following == nil:
		s.start(ctx)
	}
}

// start has events counted.
func (s *session) start(ctx context.Context) {
	run, err := s.kernel.Follow(s.packets)
	if err != nil {
		s.cannotFollow(err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	s.failed, s.following, s.cancel = nil, done, cancel
	go func() {
		defer cancel()
		done <- cmp.Or(run(ctx, s.tally.add, s.tally.lose), errors.New("it has ended"))
	}()
}

// cannotFollow notes why events are unavailable.
func (s *session) cannotFollow(err error) {
	if s.failed == nil || s.failed.Error() != err.Error() {
		s.log.Warn("new connections of services are not counted", "err", err, "retry", retryFollowing)
	}
	s.failed, s.retry = err, time.Now().Add(retryFollowing)
}
