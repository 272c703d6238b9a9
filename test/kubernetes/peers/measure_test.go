//go:build netns

package peers

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// idlePatience is for what a program does after a sync: it must not be in the way of the next measure.
	idlePatience = time.Minute

	connectRound = 50 // connections to one service before the next has its turn
	rateThreads  = 2  // that make connections at a time
)

// How much is connected: rounds of connectRound to each of three services, and then for
// how long to each as fast as can be.
var (
	latencyRounds = 10
	rateTime      = time.Second
)

// measure does all that a round has. What takes longer than the plan allows ends it, and is noted.
func (n *turn) measure(r *round) error {
	for _, phase := range []struct {
		what measure // that is over when the phase takes too long
		do   func(*round) error
	}{
		{firstStart, n.first},
		{oneChange, n.changeOne},
		{manyChanges, n.changeMany},
		{latencyFirst, n.connect},
		{memoryRest, n.rest},
		{restart, n.again},
	} {
		begin := time.Now()
		err := phase.do(r)
		if errors.Is(err, errOver) {
			n.t.Logf("%s: %v", phase.what, err)
			r.Over[phase.what] = n.plan.bound.Seconds()
			if phase.what == firstStart {
				r.Over[firstSync] = n.plan.bound.Seconds()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", phase.what, err)
		}
		one := cell{Rounds: []round{*r}}
		n.t.Logf("%s: %s (%v for this phase)", phase.what, one.figure(phase.what).show(phase.what), time.Since(begin).Round(time.Second))
	}
	return nil
}

// first starts the program on an empty host.
func (n *turn) first(r *round) error {
	if err := n.start(); err != nil {
		return err
	}
	s, err := n.proc.await(n.proc.Begun, n.plan.bound, startPoll, n.answers)
	if err != nil {
		return err
	}
	cpu, err := n.proc.processorTime()
	r.Values[firstSync], r.Values[firstStart] = s.took.Seconds(), s.last.Sub(n.proc.Begun).Seconds()
	r.Values[firstCPU] = cpu.Seconds()
	return cmp.Or(err, n.proc.idle(idlePatience))
}

// probes are the first, the middle and the last service.
func (n *turn) probes() []int { return []int{0, len(n.all) / 2, len(n.all) - 1} }

func (n *turn) answers() error {
	var errs []error
	for _, i := range n.probes() {
		errs = append(errs, n.ask(i, ""))
	}
	return errors.Join(errs...)
}

// changeOne replaces one endpoint of the last service, again and again.
func (n *turn) changeOne(r *round) error {
	var times, cpus []float64
	for range n.plan.changes {
		took, cpu, err := n.timeChange(1, []int{len(n.all) - 1})
		if err != nil {
			return err
		}
		times, cpus = append(times, took), append(cpus, cpu)
	}
	r.Values[oneChange], r.Values[oneCPU] = median(times), mean(cpus)
	return nil
}

// mean is for what is measured in steps that are large beside it.
func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}

// changeMany replaces all endpoints of 1 % of the services, in the middle of all.
func (n *turn) changeMany(r *round) (err error) {
	var some []int
	for i := range max(1, len(n.all)/100) {
		some = append(some, len(n.all)/2+i)
	}
	r.Values[manyChanges], r.Values[manyCPU], err = n.timeChange(n.size.endpoints, some)
	return err
}

// timeChange replaces the first count endpoints of services, when the program is idle, and
// returns the seconds until all of that was in the kernel, and those of processors until
// the program is idle again.
func (n *turn) timeChange(count int, some []int) (took, cpu float64, err error) {
	before, err := n.proc.processorTime()
	if err != nil {
		return 0, 0, err
	}
	n.spare = 1 - n.spare
	begin, err := n.change(count, some...)
	if err != nil {
		return 0, 0, err
	}
	s, err := n.proc.await(begin, n.plan.bound, changePoll, func() error { return n.changed(count, some) })
	if err != nil {
		return 0, 0, err
	}
	if err := n.proc.idle(idlePatience); err != nil {
		return 0, 0, err
	}
	after, err := n.proc.processorTime()
	return s.last.Sub(begin).Seconds(), (after - before).Seconds(), err
}

// looks is how often a service is asked for one of its endpoints: that one of ten is not
// among 300 is once in 10^13 runs.
const looks = 300

// changed returns an error unless services have endpoints of the spare range: all of ten
// of them that are all replaced, or one of a few.
func (n *turn) changed(count int, some []int) error {
	role := n.host(n.spare).Role
	if count == n.size.endpoints {
		for k := range min(10, len(some)) {
			if err := n.ask(some[len(some)-1-k*len(some)/10], role); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	for range looks {
		if err = n.ask(some[0], role); err == nil {
			return nil
		}
	}
	return err
}

// connect measures connections to the first, the middle and the last service.
func (n *turn) connect(r *round) error {
	times := make([][]time.Duration, 3)
	for k := range latencyRounds + 1 {
		for i, to := range n.probes() {
			some, err := lab.ConnectTimes(n.lab.Node, n.all[to].address(), connectRound)
			if err != nil {
				return err
			}
			if k > 0 { // caches are warm
				times[i] = append(times[i], some...)
			}
		}
	}
	for i, m := range []measure{latencyFirst, latencyMiddle, latencyLast} {
		slices.Sort(times[i])
		r.Values[m] = times[i][len(times[i])/2].Seconds()
	}
	for i, m := range []measure{rateFirst, rateMiddle, rateLast} {
		rate, err := n.rate(n.all[n.probes()[i]].address())
		if err != nil {
			return err
		}
		r.Values[m] = rate
	}
	return nil
}

// rate returns how many connections a second are made to a service.
func (n *turn) rate(to netip.AddrPort) (float64, error) {
	var wg sync.WaitGroup
	counts, errs := make([]int, rateThreads), make([]error, rateThreads)
	begin := time.Now()
	for i := range rateThreads {
		wg.Go(func() {
			for errs[i] == nil && time.Since(begin) < rateTime {
				var some []time.Duration
				some, errs[i] = lab.ConnectTimes(n.lab.Node, to, connectRound)
				counts[i] += len(some)
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, c := range counts {
		sum += c
	}
	return float64(sum) / time.Since(begin).Seconds(), errors.Join(errs...)
}

// rest measures the memory of the process, in some rounds when it has been left alone.
func (n *turn) rest(r *round) error {
	_, peak, err := netnstest.Memory(n.proc.Pid())
	if err != nil {
		return err
	}
	r.Values[memoryPeak] = float64(peak)
	if !n.rests {
		return nil
	}
	time.Sleep(n.plan.rest)
	now, _, err := netnstest.Memory(n.proc.Pid())
	r.Values[memoryRest] = float64(now)
	return err
}

// again stops the program and starts it with what it left in the kernel.
func (n *turn) again(r *round) error {
	peak, err := n.proc.stop()
	if err != nil {
		return err
	}
	r.Values[memoryTools] = peak
	if !n.restarts {
		return nil
	}
	if err := n.start(); err != nil {
		return err
	}
	s, err := n.proc.await(n.proc.Begun, n.plan.bound, startPoll, n.answers)
	if err != nil {
		return err
	}
	r.Values[restart] = s.last.Sub(n.proc.Begun).Seconds()
	cpu, err := n.proc.processorTime()
	r.Values[restartCPU] = cpu.Seconds()
	return err
}
