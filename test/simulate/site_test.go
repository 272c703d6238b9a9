package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/loop"
	proxierpolicy "svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
	"svcproxy.dev/svcproxy/test/policy/program"
)

const (
	syncTimeout  = 20 * time.Second
	lookInterval = time.Minute
	patience     = time.Minute // for what the program is waited for
)

// A site is the program, and what is around it.
type site struct {
	policy.Drawer
	dir   string
	piece int
	log   io.Writer

	kernels []*kernel // of IPv4 and IPv6
	claims  *claims
	host    policy.Host
	drains  map[conditions.DrainTarget]bool
	past    past

	mu    sync.Mutex // guards what probes read
	lives map[netip.Addr]life

	run *run
}

// A run is the program from a start to its end.
type run struct {
	loop   *loop.Loop
	keeper *conditions.Keeper
	stop   func() error
}

func newSite(seed uint64, dir string, log io.Writer) *site {
	s := &site{Drawer: policy.Draw(seed), dir: dir, log: log, claims: newClaims(),
		drains: map[conditions.DrainTarget]bool{}, lives: map[netip.Addr]life{}}
	s.host = s.Host()
	if s.IntN(2) == 0 {
		s.piece = 4
	}
	for _, fam := range []proxierpolicy.Family{proxierpolicy.IPv4, proxierpolicy.IPv6} {
		s.kernels = append(s.kernels, &kernel{fam: fam, events: make(chan proxier.ForeignChange, 100), announce: map[netip.Addr]bool{}, pieces: s.piece > 0})
	}
	s.note()
	return s
}

// start begins a run, which reads its sources after a while.
func (s *site) start(reading time.Duration) {
	r := &run{}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	checker := healthcheck.NewChecker(healthcheck.Config{
		Log: log, Report: func(q healthcheck.Question, res healthcheck.Result) { r.keeper.Report(q, res) }, Ask: s.ask,
	})
	r.keeper = conditions.New(conditions.Config{
		StateDir: s.dir, Log: log, Checker: checker,
		Reconsider: func(keys ...source.Key) { r.loop.Reconsider(keys...) },
		OnNode:     func(drained bool) { r.loop.DrainHost(drained) },
	})
	backends := map[proxierpolicy.Family]proxier.Backend{}
	for _, k := range s.kernels {
		k.mu.Lock()
		k.disturb(time.Now())
		clear(k.announce)
		k.mu.Unlock()
		backends[k.fam] = &backend{kernel: k}
	}
	r.loop = loop.New(loop.Config{
		Backends: backends, Node: program.Node(&s.host), Sources: []string{files, objects}, MinInterval: 100 * time.Millisecond,
		LookInterval: lookInterval, SyncTimeout: syncTimeout, Piece: s.piece, Log: log, Conditions: r.keeper, Announcer: network(s.kernels),
	})
	r.loop.DrainHost(r.keeper.Drains().Node() != nil)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, part := range []func(context.Context) error{checker.Run, r.keeper.Run, r.keeper.Keep, r.loop.Run} {
		running.Go(func() { part(ctx) })
	}
	var contentions []*proxier.Contention
	for fam, b := range backends {
		repair := proxier.NewContention(func() { r.loop.Repair(fam) })
		look := proxier.NewContention(func() { r.loop.Look(fam) })
		contentions = append(contentions, repair, look)
		running.Go(func() {
			b.(proxier.Watcher).Watch(ctx, func(e proxier.ForeignChange) {
				if e.Lost {
					look.Changed("")
				} else {
					repair.Changed("")
				}
			})
		})
	}
	r.stop = func() error {
		for _, c := range contentions {
			c.Stop()
		}
		cancel()
		ended := make(chan struct{})
		go func() { running.Wait(); close(ended) }()
		select {
		case <-ended:
			return nil
		case <-time.After(patience):
			return errors.New("the program does not end")
		}
	}
	s.run = r
	time.Sleep(reading)
	for _, name := range []string{files, objects} {
		r.loop.Apply(s.claims.all(name))
		r.loop.Synced(name)
	}
}

// restart ends the run and begins another one. After a crash it knows of endpoints what was written a moment before the end.
func (s *site) restart(crash bool, reading time.Duration) error {
	file := filepath.Join(s.dir, conditions.StateName)
	before, _ := os.ReadFile(file)
	if err := s.run.stop(); err != nil {
		return err
	}
	if crash && before != nil {
		if err := os.WriteFile(file, before, 0o600); err != nil {
			return err
		}
	}
	again := newClaims()
	for _, name := range []string{files, objects} {
		again.apply(s.claims.all(name))
	}
	s.claims = again
	s.note()
	s.start(reading)
	for q := range s.past[len(s.past)-1].asked {
		s.past[len(s.past)-1].asked[q] = time.Now()
	}
	return nil
}

// note notes what is in force from now on.
func (s *site) note() *moment {
	s.mu.Lock()
	lives := maps.Clone(s.lives)
	s.mu.Unlock()
	m := &moment{from: time.Now(), lives: lives, asked: map[string]time.Time{}, away: s.drains[conditions.DrainTarget{Node: true}],
		world: policy.World{Host: s.host, Services: s.claims.inUse(), Known: map[source.Key]map[netip.AddrPort]policy.Known{}}}
	for _, svc := range m.world.Services {
		known := map[netip.AddrPort]policy.Known{}
		for i := range svc.Endpoints {
			e := &svc.Endpoints[i]
			drained := s.drains[conditions.DrainTarget{Addr: e.Addr}] || s.drains[conditions.DrainTarget{Addr: e.Addr, Service: svc.Key}]
			known[svc.EndpointAt(e)] = policy.Known{Drained: drained}
			if q := question(svc, e); q != "" {
				m.asked[q] = m.from
				if n := len(s.past); n > 0 && !s.past[n-1].asked[q].IsZero() {
					m.asked[q] = s.past[n-1].asked[q]
				}
			}
		}
		m.world.Known[svc.Key] = known
	}
	s.past = append(s.past, m)
	return m
}

// ask answers a probe as the endpoint would.
func (s *site) ask(ctx context.Context, q healthcheck.Question) error {
	s.mu.Lock()
	l := s.lives[q.At.Addr()]
	s.mu.Unlock()
	switch {
	case l.at(time.Now()):
		time.Sleep(5 * time.Millisecond)
		return nil
	case l.silent:
		<-ctx.Done()
		return ctx.Err()
	}
	return errors.New("refused")
}

// A network is what hears of addresses.
type network []*kernel

// Announce implements announce.Announcer.
func (n network) Announce(fam proxierpolicy.Family, changes []announce.Change) {
	k := n[slices.IndexFunc(n, func(k *kernel) bool { return k.fam == fam })]
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ch := range changes {
		if ch.Means == 0 {
			delete(k.announce, ch.Addr)
			continue
		}
		if k.announce[ch.Addr] = true; !k.damaged && !balances(k.holds, ch.Addr) {
			k.complain("%s is announced, and the kernel does not balance it", ch.Addr)
		}
	}
}

// Unavailable implements announce.Announcer.
func (n network) Unavailable(source.Means) string { return "" }

// Unheard implements announce.Announcer.
func (n network) Unheard(proxierpolicy.Family) string { return "" }

// Unanswered implements announce.Announcer.
func (n network) Unanswered() map[netip.Addr]string { return nil }

// judge judges what the kernel has held since it was last judged, and holds now.
func (s *site) judge() error {
	synctest.Wait()
	now := time.Now()
	for _, k := range s.kernels {
		k.mu.Lock()
		damaged, due, calm := k.damaged, k.due, k.calm(now)
		if calm && !damaged && !k.half {
			k.serveAnnounced()
		}
		wrong := k.wrong
		versions := k.versions
		if k.versions = nil; k.holds != nil && !damaged && !k.half {
			versions = append(versions, k.version(now))
		}
		k.mu.Unlock()
		switch {
		case wrong != "":
			return errors.New(wrong)
		case damaged && calm && !due.IsZero() && now.After(due):
			return fmt.Errorf("%s: what others damaged is not repaired at %s", k.fam, due.Format(stamp))
		}
		for i, v := range versions {
			if err := s.judgeVersion(v, s.piece > 0 && (i+1 < len(versions) || !calm)); err != nil {
				return err
			}
		}
	}
	return nil
}

const stamp = "15:04:05.000"

// judgeVersion judges what some packets met as a version came, or later. Between two pieces of a service, what is
// not served yet is untouched, or refused as the other ports of an address are (docs/operations.md, Large services).
func (s *site) judgeVersion(v version, between bool) error {
	world := &s.past[len(s.past)-1].world
	for range 16 {
		p := s.Packet(world)
		if proxierpolicy.FamilyOf(p.To.Addr()) != v.Family || !s.past.comes(p, v.since, v.from) {
			continue
		}
		got := program.Answer(v.State, p)
		if between {
			delete(got, policy.Outcome{Verdict: policy.Untouched})
			delete(got, policy.Outcome{Verdict: policy.Refused})
		}
		if bad := s.past.illegal(got, p, v.since, v.from); len(bad) > 0 {
			return fmt.Errorf("%s: %+v: illegal after %s: %v; legal now: %v", v.from.Format(stamp), p, v.since.Format(stamp), bad, policy.Legal(world, p))
		}
	}
	return nil
}

// rest waits until all must be as it should be, and judges that.
func (s *site) rest() error {
	s.mu.Lock()
	for a, l := range s.lives {
		if l.flapping > 0 {
			s.lives[a] = life{since: time.Now(), dead: s.IntN(2) == 0}
		}
	}
	s.mu.Unlock()
	for _, k := range s.kernels {
		k.mu.Lock()
		k.faults = nil
		k.mu.Unlock()
	}
	m := s.note()
	for range 4 {
		time.Sleep(rest / 4)
		if err := s.judge(); err != nil {
			return err
		}
	}
	now := time.Now()
	s.past = s.past[len(s.past)-1:]
	if alive := s.run.loop.Alive(); alive.Before(now) || len(s.run.loop.Stalls()) > 0 {
		return fmt.Errorf("after a rest: stuck since %s: %v", alive.Format(stamp), s.run.loop.Stalls())
	}
	select {
	case <-s.run.loop.Ready():
	default:
		return errors.New("after a rest: the first sync is not complete")
	}
	for _, k := range s.kernels {
		k.mu.Lock()
		holds, damaged, told := k.holds, k.damaged, maps.Clone(k.announce)
		k.mu.Unlock()
		if damaged {
			return fmt.Errorf("after a rest: %s: what others damaged is not repaired", k.fam)
		}
		if legal := m.announced(k.fam, now); !maps.Equal(told, legal) {
			return fmt.Errorf("after a rest: %s: announced %v, want %v", k.fam, sorted(told), sorted(legal))
		}
		for range 200 {
			p := s.Packet(&m.world)
			if proxierpolicy.FamilyOf(p.To.Addr()) != k.fam {
				continue
			}
			got := program.Answer(holds, p)
			var err error
			m.legal(p, now, func(legal policy.Outcomes) bool {
				if !legal.Equal(got) {
					err = fmt.Errorf("after a rest: %+v meets %v, legal is %v", p, got, legal)
				}
				return false
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func sorted(set map[netip.Addr]bool) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
}
