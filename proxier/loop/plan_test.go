package loop

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
)

// A planner is a kernel that plans as it is told.
type planner struct {
	*kernel
	plan  func(context.Context, *policy.State) ([]proxier.Change, error)
	plans atomic.Int32
}

func (p *planner) Plan(ctx context.Context, st *policy.State) ([]proxier.Change, error) {
	p.plans.Add(1)
	return p.plan(ctx, st)
}

func startPlanner(t *testing.T, plan func(context.Context, *policy.State) ([]proxier.Change, error)) (*Loop, *planner) {
	p := &planner{kernel: &kernel{}, plan: plan}
	return start(t, p.kernel, func(c *Config) { c.Backends = map[policy.Family]proxier.Backend{policy.IPv4: p} }), p
}

func TestPlanSaysWhatIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []proxier.Change{{Op: "add", Object: "chain x"}}
		l, k := startPlanner(t, func(context.Context, *policy.State) ([]proxier.Change, error) { return objects, nil })
		if _, err := l.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), "waiting for file") {
			t.Errorf("before files have been read: error %v", err)
		}
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80"), policytest.File("b", "y 10.96.0.2:80")))
		l.Synced("file")
		synctest.Wait()
		p, err := l.Plan(t.Context())
		if err != nil || len(p.Edits) != 0 || len(p.Families[0].Services) != 0 || p.Families[0].Err != nil {
			t.Fatalf("all is held: %+v, error %v", p, err)
		}
		k.failWith(errors.New("no kernel"))
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:81")))
		l.Apply(policytest.Set(policytest.File("c", "z 10.96.0.3:80")))
		synctest.Wait()
		p, err = l.Plan(t.Context())
		fatal.If(t, err)
		f := p.Families[0]
		if diff := cmp.Diff(objects, f.Objects); diff != "" || f.Err != nil {
			t.Errorf("objects (-want +got):\n%s, error %v", diff, f.Err)
		}
		if len(p.Edits) != 2 || p.Edits[0].Old.Ports[0].Port != 80 || p.Edits[0].New.Ports[0].Port != 81 || p.Edits[1].Old != nil {
			t.Errorf("edits: %v", p.Edits)
		}
		if len(f.Services) != 2 || f.Services[0].Old.Frontends[0].Key.Port != 80 || f.Services[1].Old != nil || f.Fresh {
			t.Errorf("services: %v", f.Services)
		}
	})
}

// A change is synced at once, however long a comparison takes, which begins again.
func TestPlanGivesWayToChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Second
		l, k := startPlanner(t, func(ctx context.Context, st *policy.State) ([]proxier.Change, error) {
			select {
			case <-time.After(takes):
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		k.expect(t, "full")
		answer := make(chan *report.Plan)
		began := time.Now()
		go func() {
			p, err := l.Plan(t.Context())
			if err != nil {
				t.Error(err)
			}
			answer <- p
		}()
		time.Sleep(time.Second)
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		k.expect(t, "y") // without time going by
		p := <-answer
		if took := time.Since(began); took != time.Second+planPause+takes || p.Families[0].Err != nil || k.plans.Load() != 2 {
			t.Errorf("answered after %v and %d plans, error %v", took, k.plans.Load(), p.Families[0].Err)
		}
	})
}

// A plan ends in time, whatever happens meanwhile.
func TestPlanIsBounded(t *testing.T) {
	hang := func(ctx context.Context, _ *policy.State) ([]proxier.Change, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, tt := range map[string]struct {
		disturb func(*Loop, *planner)
		want    string
		after   time.Duration
	}{
		"kernel does not answer": {func(*Loop, *planner) {}, "comparing ipv4 with the kernel: context deadline exceeded", planTime},
		"changes all the time": {func(l *Loop, _ *planner) {
			for i := range 1000 {
				time.Sleep(50 * time.Millisecond)
				l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:"+[]string{"80", "81"}[i%2])))
			}
		}, "comparing ipv4 with the kernel: context deadline exceeded: services change all the time", planTime},
		"long sync": {func(l *Loop, k *planner) {
			k.mu.Lock()
			k.took = 50 * time.Second
			k.mu.Unlock()
			l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		}, "comparing ipv4 with the kernel: context deadline exceeded: a sync takes long", planTime},
		"family dropped": {func(l *Loop, _ *planner) { time.Sleep(time.Second); l.SetBackends(nil) }, "comparing ipv4 with the kernel: context canceled", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, k := startPlanner(t, hang)
				l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
				l.Synced("file")
				synctest.Wait()
				began := time.Now()
				go tt.disturb(l, k)
				p, err := l.Plan(t.Context())
				fatal.If(t, err)
				if f := p.Families[0]; f.Err == nil || f.Err.Error() != tt.want || time.Since(began) != tt.after {
					t.Errorf("after %v: %v\nwant %s", time.Since(began), f.Err, tt.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
