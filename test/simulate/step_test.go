package simulate

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	proxierpolicy "svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
	"svcproxy.dev/svcproxy/test/policy/program"
)

// A step is one thing that happens, and the time until the next one. What it draws comes of its own seed, so that it means
// much the same when other steps are left out.
type step struct {
	kind string
	seed uint64
	wait time.Duration
}

// A kind is what can happen.
type kind struct {
	name  string
	often int
	do    func(*site, policy.Drawer) (what string, err error)
}

var kinds = []kind{
	{"file", 7, func(s *site, d policy.Drawer) (string, error) { return s.hand(d, files, "abcd"), nil }},
	{"object", 4, func(s *site, d policy.Drawer) (string, error) { return s.hand(d, objects, "xyz"), nil }},
	{"exchange", 2, (*site).exchange},
	{"endpoint", 6, (*site).live},
	{"drain", 3, (*site).drain},
	{"undrain", 2, (*site).undrain},
	{"errors", 3, (*site).errors},
	{"damage", 3, (*site).damage},
	{"addresses", 2, (*site).addresses},
	{"restart", 1, (*site).restarted},
	{"resync", 1, func(s *site, _ policy.Drawer) (string, error) { s.run.loop.FullSync(); return "resync", nil }},
	{"rest", 3, func(s *site, _ policy.Drawer) (string, error) { return "rest", s.rest() }},
}

// drawSteps draws what happens in a run.
func drawSteps(seed uint64, n int) (steps []step) {
	d := policy.Draw(seed)
	var names []string
	for _, k := range kinds {
		names = append(names, slices.Repeat([]string{k.name}, k.often)...)
	}
	waits := []time.Duration{0, 50 * time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond, 5 * time.Second, 20 * time.Second, time.Minute}
	for range n {
		steps = append(steps, step{pick(d, names), d.Uint64(), pick(d, waits)})
	}
	return steps
}

func pick[T any](d policy.Drawer, list []T) T { return list[d.IntN(len(list))] }

// do does a step and waits, and judges meanwhile. It returns what it did.
func (s *site) do(st step) (what string, err error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == st.kind })
	hangs := time.AfterFunc(10*time.Minute+st.wait, func() { panic("a step hangs: " + st.kind) })
	defer hangs.Stop()
	if what, err = kinds[i].do(s, policy.Draw(st.seed)); err != nil {
		return what, err
	}
	for left := st.wait; err == nil && left > 0; left -= slack + 50*time.Millisecond {
		time.Sleep(min(left, slack+50*time.Millisecond))
		err = s.judge()
	}
	return what, err
}

// apply has a source hand over changes.
func (s *site) apply(ch source.Changes) {
	s.claims.apply(ch)
	s.note()
	s.run.loop.Apply(ch)
}

// hand has a source hand over a unit: a new version, one that differs a little, or none.
func (s *site) hand(d policy.Drawer, name, units string) string {
	id := source.UnitID{Source: name, Name: string(units[d.IntN(len(units))])}
	was := s.claims.units[id]
	u := source.Unit{ID: id, Partial: name == objects, Since: int64(d.IntN(4))}
	switch {
	case was != nil && d.IntN(6) == 0:
		s.apply(source.Changes{Delete: []source.UnitID{id}})
		return "delete " + id.Name
	case was != nil && d.IntN(3) > 0:
		u.Services = slices.Clone(was.Services)
		i := d.IntN(len(u.Services))
		u.Services[i] = edited(d, u.Services[i])
	default:
		n := d.IntN(6)
		u.Services = []*source.Service{service(d, n)}
		if name == files && d.IntN(4) == 0 { // an object is one service
			u.Services = append(u.Services, service(d, (n+1+d.IntN(5))%6))
		}
	}
	s.apply(source.Changes{Set: []source.Unit{u}})
	return "hand over " + describe(u)
}

func describe(u source.Unit) string {
	text := fmt.Sprintf("%s (since %d)", u.ID.Name, u.Since)
	for _, s := range u.Services {
		fields, _ := json.Marshal(s)
		text += "\n\t" + unset.ReplaceAllString(string(fields), "")
	}
	return text
}

// unset are fields that say nothing.
var unset = regexp.MustCompile(`"[A-Za-z]+":(null|0|""|false|\{\}),?`)

// service draws a valid service.
func service(d policy.Drawer, n int) *source.Service {
	for {
		s := d.Service(n)
		if s.HealthCheck == nil && d.IntN(2) == 0 {
			s.HealthCheck = d.Service(n).HealthCheck
		}
		if !policy.IsFaulty(s) {
			return s
		}
	}
}

// edited returns a service of which something differs.
func edited(d policy.Drawer, s *source.Service) *source.Service {
	other, out := service(d, 0), *s
	switch d.IntN(8) {
	case 0:
		out.Endpoints = other.Endpoints
	case 1:
		out.HealthCheck = other.HealthCheck
	case 2:
		out.SourceRanges = other.SourceRanges
	case 3:
		out.InternalTrafficPolicy, out.ExternalTrafficPolicy = other.InternalTrafficPolicy, other.ExternalTrafficPolicy
	case 4:
		out.VIPs, out.ExternalIPs, out.LoadBalancerIPs = other.VIPs, other.ExternalIPs, other.LoadBalancerIPs
	case 5:
		out.Ports = other.Ports
	case 6:
		out.Disabled, out.MinUp, out.Announce, out.SlowStart = other.Disabled, other.MinUp, other.Announce, other.SlowStart
	}
	if n := len(out.Endpoints); n > 0 && len(other.Endpoints) > 0 && d.IntN(2) == 0 {
		out.Endpoints = slices.Clone(out.Endpoints)
		e := &out.Endpoints[d.IntN(n)]
		e.Weight, e.Ready, e.Serving, e.Terminating = other.Endpoints[0].Weight, other.Endpoints[0].Ready, other.Endpoints[0].Serving, other.Endpoints[0].Terminating
	}
	if policy.IsFaulty(&out) {
		return s
	}
	return &out
}

// exchange has two files exchange their services, at once or one after the other.
func (s *site) exchange(d policy.Drawer) (string, error) {
	list := s.claims.of(files)
	if len(list) < 2 {
		return "nothing", nil
	}
	i := d.IntN(len(list))
	a, b := list[i].Unit, list[(i+1)%len(list)].Unit
	a.Services, b.Services = b.Services, a.Services
	if d.IntN(2) == 0 {
		s.apply(source.Changes{Set: []source.Unit{a, b}})
		return fmt.Sprintf("exchange the services of %s and %s", a.ID.Name, b.ID.Name), nil
	}
	s.apply(source.Changes{Set: []source.Unit{a}})
	time.Sleep(time.Duration(d.IntN(3)) * time.Second)
	s.apply(source.Changes{Set: []source.Unit{b}})
	return fmt.Sprintf("exchange the services of %s, then %s", a.ID.Name, b.ID.Name), nil
}

// endpoints returns the addresses of endpoints in use or, of these, those that are asked.
func (s *site) endpoints(asked bool) []netip.Addr {
	all := map[netip.Addr]bool{}
	for _, svc := range s.claims.inUse() {
		for i := range svc.Endpoints {
			if e := &svc.Endpoints[i]; !asked || question(svc, e) != "" {
				all[e.Addr] = true
			}
		}
	}
	return sorted(all)
}

// live has an endpoint live, die or flap.
func (s *site) live(d policy.Drawer) (string, error) {
	all := s.endpoints(true)
	if len(all) == 0 {
		return "nothing", nil
	}
	a, l := pick(d, all), life{since: time.Now()}
	switch d.IntN(6) {
	case 0:
		l.flapping = time.Duration(1+d.IntN(30)) * time.Second
	case 1, 2:
		l.dead, l.silent = true, d.IntN(2) == 0
	}
	s.mu.Lock()
	if was := s.lives[a]; was.flapping == 0 && l.flapping == 0 && was.dead == l.dead {
		l.since = was.since
	}
	s.lives[a] = l
	s.mu.Unlock()
	s.note()
	return fmt.Sprintf("endpoint %s: dead %t, flaps each %s", a, l.dead, l.flapping), nil
}

func (s *site) drain(d policy.Drawer) (string, error) {
	t, why := conditions.DrainTarget{Node: true}, proxierpolicy.Drain{By: "root", At: time.Now()}
	if all := s.endpoints(false); len(all) > 0 && d.IntN(6) > 0 {
		t = conditions.DrainTarget{Addr: pick(d, all)}
		if list := s.claims.inUse(); d.IntN(3) == 0 {
			t.Service = pick(d, list).Key
		}
	}
	if d.IntN(2) == 0 {
		why.Until = why.At.Add(10 * time.Second)
	}
	s.drains[t] = true
	s.note()
	if err := s.run.keeper.Drain(t, why); err != nil {
		return "", err
	}
	for _, k := range s.kernels {
		k.mu.Lock()
		left := len(k.announce)
		k.mu.Unlock()
		if t.Node && left > 0 {
			return "", fmt.Errorf("%s: %d addresses are announced after a drain of the host", k.fam, left)
		}
	}
	return "drain " + t.String(), nil
}

func (s *site) undrain(d policy.Drawer) (string, error) {
	if len(s.drains) == 0 {
		return "nothing", nil
	}
	t := pick(d, slices.SortedFunc(maps.Keys(s.drains), func(a, b conditions.DrainTarget) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	}))
	delete(s.drains, t)
	s.note()
	had, err := s.run.keeper.Undrain(t)
	if err == nil && !had {
		err = fmt.Errorf("%s was not drained", t)
	}
	return "undrain " + t.String(), err
}

// kernel returns the one of either family.
func (s *site) kernel(d policy.Drawer) *kernel { return pick(d, s.kernels) }

// errors has the next Syncs of a family fail, take long, or hang.
func (s *site) errors(d policy.Drawer) (string, error) {
	k := s.kernel(d)
	var list []fault
	for range 1 + d.IntN(4) {
		list = append(list, fault{takes: pick(d, []time.Duration{0, 0, 300 * time.Millisecond, 3 * time.Second, 2 * syncTimeout}), fails: d.IntN(2) == 0, half: d.IntN(2) == 0})
	}
	k.mu.Lock()
	k.faults = list
	k.mu.Unlock()
	if d.IntN(2) == 0 {
		s.run.loop.FullSync()
	}
	return fmt.Sprintf("%s: Syncs: %+v", k.fam, list), nil
}

// damage has another program damage what the kernel holds. The backend hears of it, loses the event, or hears nothing.
func (s *site) damage(d policy.Drawer) (string, error) {
	k, how, times := s.kernel(d), d.IntN(3), 1
	if d.IntN(5) == 0 {
		times = 15
	}
	var what string
	for range times {
		what = k.damage(d.IntN)
		now := time.Now()
		k.mu.Lock()
		switch k.due = now.Add(slack); {
		case !k.damaged || k.often(now):
			k.due = time.Time{}
		case how == 2:
			k.due = now.Add(lookInterval + slack)
		}
		k.mu.Unlock()
		if how < 2 {
			k.events <- proxier.ForeignChange{Lost: how == 1}
		}
		if times > 1 {
			time.Sleep(200 * time.Millisecond)
		}
	}
	return fmt.Sprintf("%s: damage %s, %s, %d times", k.fam, what, []string{"heard of", "event lost", "not heard of"}[how], times), nil
}

// addresses changes the host.
func (s *site) addresses(d policy.Drawer) (string, error) {
	host := d.Host()
	now := host.Addresses
	switch n := len(s.host.Addresses); d.IntN(4) {
	case 0:
		now = nil
	case 1:
	default: // one comes or goes
		unlike := func(a policy.Address) bool { return !carries(&s.host, a.Addr) }
		if i := slices.IndexFunc(now, unlike); i >= 0 {
			came := now[i]
			came.Up = came.Up && d.IntN(2) == 0
			came.Primary = came.Primary && came.Up
			now = append(s.host.Addresses[:n:n], came)
		} else if n > 0 {
			now = slices.Delete(slices.Clone(s.host.Addresses), 0, 1)
		}
	}
	if now != nil {
		host = s.host
		host.Addresses = now
	}
	s.host = host
	s.note()
	s.run.loop.SetNode(program.Node(&host))
	text := fmt.Sprintf("host %+v", host)
	for _, a := range host.Addresses {
		text += fmt.Sprintf("; %s up %t primary %t", a.Addr, a.Up, a.Primary)
	}
	return text, nil
}

func (s *site) restarted(d policy.Drawer) (string, error) {
	crash, reading := d.IntN(2) == 0, time.Duration(d.IntN(5))*time.Second
	return fmt.Sprintf("restart, crash %t, reading for %s", crash, reading), s.restart(crash, reading)
}
