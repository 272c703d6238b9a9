// Package drain answers svcproxy drain and undrain on the control socket.
//
// A Drainer drains an endpoint or this host: it has a Keeper remember the drain, waits until the
// kernel sends no new connection there, or routers are told, and says what may still be under way.
// It never waits for connections to end: a client asks for what is left as often as it wants, and
// a leftCounter then looks into connection tracking, once for all that is asked about and
// ever less often the longer that takes.
//
// The main types are the Drainer, the Config that it is made of, and the leftCounter.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os/user"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Keeper keeps drains, as conditions.Keeper does. When Drain or Undrain has returned, the
// Loop has been told, and without an error a restart knows of it. Only after
// conditions.ErrTooManyDrains nothing has changed.
type Keeper interface {
	Drain(t conditions.DrainTarget, why policy.Drain) error
	Undrain(t conditions.DrainTarget) (bool, error)
	Drains() *conditions.Drains
}

// A Loop is what draining needs of loop.Loop.
type Loop interface {
	Snapshot() *report.Snapshot
	Syncs() []report.Family
	Ready() <-chan struct{}
	Held(ctx context.Context, fam policy.Family) error
}

// A Config is what a Drainer is made of.
type Config struct {
	Log    *slog.Logger
	Keeper Keeper
	Loop   Loop
	Heard  func() []string                    // where load balancers hear that this host is drained
	Told   func(context.Context) (int, error) // as Announcer.Told

	// Open lists connections of a family that are open and go to an address, or, invalid, to any other than they were
	// sent to: where to, and where they were sent.
	Open func(ctx context.Context, fam policy.Family, to netip.Addr, visit func(netip.Addr, proxier.FrontendAddr)) error
}

// A Drainer drains endpoints, and this host, for those who ask.
type Drainer struct {
	Config
	left *leftCounter
}

// New returns a Drainer.
func New(c Config) *Drainer {
	return &Drainer{c, &leftCounter{
		Config: c, turn: make(chan struct{}, 1),
		asked: make(map[conditions.DrainTarget]time.Time), former: make(map[proxier.FrontendAddr]source.Key),
	}}
}

// AddRoutes adds what is asked about drains, and what changes them.
func (d *Drainer) AddRoutes(r *control.Routes) {
	control.Post(r, control.DrainPath, d.drain)
	control.Post(r, control.UndrainPath, d.undrain)
	control.Get(r, control.DrainPath, func(context.Context, url.Values) ([]conditions.Drained, error) {
		return d.Keeper.Drains().List(), nil
	})
	control.Get(r, control.LeftPath, d.answerLeft)
}

// holdTime is how long the kernel may take to hold a drain: clients give up after 30 s
// without an answer.
const holdTime = 20 * time.Second

var errNotHeld = fmt.Errorf("not within %v", holdTime)

// drain drains a target. It answers when the kernel sends no new connection there.
func (d *Drainer) drain(ctx context.Context, by control.Peer, q control.Drain) (answer control.DrainAnswer, err error) {
	q.Reason = source.Printable(q.Reason)
	if err := q.Check(); err != nil {
		return answer, err
	}
	was := d.Keeper.Drains().Get(q.Target)
	if err := d.known(q.Target); was == nil && err != nil {
		return answer, err
	}
	why := drainOf(was, by, q, time.Now())
	d.Log.Info("asked to drain", "target", q.Target.String(), "reason", why.Reason, "user", why.By, "timeout", q.Timeout, "by", by)
	d.left.begin(q.Target)
	defer d.left.changed(q.Target)
	err = d.Keeper.Drain(q.Target, why) // also where nothing changes: the disk may not have it
	if errors.Is(err, conditions.ErrTooManyDrains) {
		return answer, err
	}
	if err != nil {
		return answer, fmt.Errorf("%s is drained, until svcproxy restarts: %w", control.TargetName(q.Target), err)
	}
	if err := d.held(ctx, q.Target); err != nil {
		return answer, fmt.Errorf("%s stays drained, and the kernel may still send new connections there: %w", control.TargetName(q.Target), err)
	}
	if answer.Marked, err = d.routers(ctx, q.Target); err != nil {
		return answer, fmt.Errorf("%s stays drained, and routers may not know of it yet: %w", control.TargetName(q.Target), err)
	}
	now := d.Keeper.Drains().Get(q.Target)
	if now == nil {
		return answer, errUndrained
	}
	answer.Drained = conditions.Drained{Target: q.Target, Drain: *now}
	if q.Target.Node {
		answer.Heard = d.Heard()
	}
	return answer, nil
}

var errUndrained = errors.New("the drain was ended meanwhile")

// drainOf returns the drain that is asked for of what was drained before as was says, or not: nil.
func drainOf(was *policy.Drain, by control.Peer, q control.Drain, now time.Time) policy.Drain {
	why := policy.Drain{At: now.Round(0)}
	if was != nil {
		why = *was
	}
	if was != nil && q.Reason == "" && q.Timeout == 0 && !q.NoLimit {
		return why
	}
	why.By = userName(by.UID)
	if q.Reason != "" {
		why.Reason = q.Reason
	}
	if q.NoLimit {
		why.Until = time.Time{}
	}
	if q.Timeout != 0 {
		why.Until = now.Add(q.Timeout) // also where the clock is set meanwhile
	}
	return why
}

// userName returns the name of a user, or its number where it has none.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// undrain ends a drain. It answers when the kernel holds that.
func (d *Drainer) undrain(ctx context.Context, by control.Peer, q control.Drain) (over control.Undrained, err error) {
	d.Log.Info("asked to end a drain", "target", q.Target.String(), "user", userName(by.UID), "by", by)
	was, err := d.Keeper.Undrain(q.Target)
	if d.left.changed(q.Target); len(d.Keeper.Drains().List()) == 0 {
		d.left.forget()
	}
	if err != nil {
		return over, fmt.Errorf("%s is not drained any more, until svcproxy restarts: %w", control.TargetName(q.Target), err)
	}
	if !was {
		for _, e := range d.Keeper.Drains().List() { // what may have been meant
			if !q.Target.Node && e.Target.Addr == q.Target.Addr {
				return over, fmt.Errorf("%s is not drained; %s is", q.Target, e.Target)
			}
		}
		return over, fmt.Errorf("%s is not drained", control.TargetName(q.Target))
	}
	if err = d.held(ctx, q.Target); err != nil {
		return over, fmt.Errorf("%s is not drained any more, and the kernel may not know it yet: %w", control.TargetName(q.Target), err)
	}
	if _, err = d.routers(ctx, q.Target); err != nil {
		return over, fmt.Errorf("%s is not drained any more, and routers may not know it yet: %w", control.TargetName(q.Target), err)
	}
	return d.still(q.Target), nil
}

// still answers that a drain is over, with the others of endpoints that it was for.
func (d *Drainer) still(t conditions.DrainTarget) control.Undrained {
	over := control.Undrained{Target: t}
	for _, e := range d.Keeper.Drains().List() {
		same := (e.Target.Service == source.Key{} || t.Service == source.Key{})
		switch {
		case t.Node || e.Target.Node || e.Target.Addr != t.Addr || !same:
		case len(over.Still) < control.MaxStill:
			over.Still = append(over.Still, e)
		default:
			over.More++
		}
	}
	return over
}

// held waits until the kernel holds a drain, or its end. The packets of a host that is drained
// are handled as before: there is nothing to hold.
func (d *Drainer) held(ctx context.Context, t conditions.DrainTarget) error {
	if t.Node {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, holdTime, errNotHeld)
	defer cancel()
	return d.Loop.Held(ctx, policy.FamilyOf(t.Addr))
}

// toldTime is how long it may take to tell routers: a new session of BGP may be on its way.
const toldTime = 5 * time.Second

var errNotTold = fmt.Errorf("not within %v", toldTime)

// routers waits until routers are told of a drain of this host, or its end, and returns how many routes
// are marked for that.
func (d *Drainer) routers(ctx context.Context, t conditions.DrainTarget) (int, error) {
	if !t.Node {
		return 0, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, toldTime, errNotTold)
	defer cancel()
	return d.Told(ctx)
}

// known returns why a target cannot be drained: no service has it.
func (d *Drainer) known(t conditions.DrainTarget) error {
	if t.Node {
		return nil
	}
	if !d.ready() {
		return errNotReady
	}
	services := d.Loop.Snapshot().Services
	has := func(s claims.UnitService) bool {
		return slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return t.Covers(s.Key, e.Addr) })
	}
	if slices.ContainsFunc(services, has) {
		return nil
	}
	if (t.Service == source.Key{}) {
		return fmt.Errorf("no service has an endpoint %s; svcproxy status NAME shows those of a service", t.Addr)
	}
	if !slices.ContainsFunc(services, func(s claims.UnitService) bool { return s.Key == t.Service }) {
		return fmt.Errorf("no service is %s", t.Service)
	}
	return fmt.Errorf("%s has no endpoint %s; svcproxy status %[1]s shows those it has", t.Service, t.Addr)
}

var errNotReady = errors.New("the first sync is not complete")

func (d *Drainer) ready() bool {
	select {
	case <-d.Loop.Ready():
		return true
	default:
		return false
	}
}

// answerLeft answers what a drain still waits for.
func (d *Drainer) answerLeft(ctx context.Context, q url.Values) (control.Remaining, error) {
	t, err := conditions.ParseDrainTarget(q.Get(control.TargetKey))
	if err != nil {
		return control.Remaining{}, err
	}
	why := d.Keeper.Drains().Get(t)
	if why == nil {
		return control.Remaining{Services: []control.RemainingIn{}}, nil
	}
	left := control.Remaining{Drained: true, Until: why.Until, Services: []control.RemainingIn{}}
	if !d.ready() { // a daemon that starts knows no service
		left.Unknown = errNotReady.Error()
		return left, nil
	}
	services, looked, err := d.left.of(ctx, t)
	if err != nil {
		left.Unknown = err.Error()
		return left, nil
	}
	left.Services, left.Looked = services, looked
	return left, nil
}
