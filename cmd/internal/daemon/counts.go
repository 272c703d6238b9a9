package daemon

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/netutil/sysctl"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

const (
	// countsMoment is how old counts of services and files may be: scrapers that ask
	// together have them counted once.
	countsMoment = time.Second

	// warningsMoment is the same of warnings, for which files of the kernel and the
	// configuration directory are read.
	warningsMoment = 10 * time.Second

	// countsPatience is how long who asks waits for new ones.
	countsPatience = time.Second
)

// countNow returns the counts as of a moment ago.
func (d *daemon) countNow() healthz.Counts {
	d.warned.Begin() // beside the others
	n := d.recentCounts()
	warnings, _ := d.warned.Get()
	n.Warnings += warnings
	return n
}

// recentCounts returns all counts but that of warnings.
func (d *daemon) recentCounts() healthz.Counts {
	n, _ := d.counted.Get()
	return n
}

// count counts all but warnings, which would read from disk.
func (d *daemon) count() healthz.Counts {
	n := healthz.Counts{Loop: d.loop.Counts(), Labels: d.settings.Current().Metrics.ServiceLabels, Files: map[source.FileState]int{}}
	n.Drains, n.OldestDrain = countDrains(d.keeper.Drains())
	n.Warnings = n.Loop.Warnings + d.doubts.count()
	n.Flows, n.MaxFlows = tracked()
	if total, err := hostsetup.Dropped(); err == nil {
		n.DroppedNew = &total
	}
	refusals := d.loop.Refusals()
	sources.Each(d.sources, func(s sources.Holder) { n.Held += s.Held() })
	for _, s := range d.sources {
		st := sources.AsUsed(known(s), refusals)
		for _, f := range st.Files {
			n.Files[f.State]++
			add(&n, f.Faults)
		}
		for _, o := range st.Objects {
			add(&n, o.Faults)
		}
	}
	own, _ := d.settings.Pending()
	add(&n, own)
	n.SettingsFaults = faults(own)
	return n
}

// known returns what a source knows, without what it has to look for on its disk.
func known(s source.Source) source.Status {
	if q, ok := s.(interface{ Known() source.Status }); ok {
		return q.Known()
	}
	return s.Status()
}

func add(n *healthz.Counts, list []source.Fault) {
	n.Faults += faults(list)
	n.Warnings += len(list) - faults(list)
}

// faults counts those that are no warnings.
func faults(list []source.Fault) (n int) {
	for _, f := range list {
		if !f.Warning {
			n++
		}
	}
	return n
}

// countWarnings counts those of the host, of listeners and of directories.
func (d *daemon) countWarnings() int {
	ctx, cancel := context.WithTimeout(context.Background(), warningsMoment)
	defer cancel()
	n := len(d.warnings(ctx))
	for _, s := range d.sources {
		n += len(s.Status().Warnings)
	}
	return n
}

// text returns the counts for people, in one line.
func text(n healthz.Counts) string {
	var services int
	for _, some := range n.Loop.Services {
		services += some
	}
	problems := []string{
		some(n.Loop.Services["unserved"], "service cannot be made", "services cannot be made"),
		some(n.Loop.Services[policy.Reject.String()], "service refuses", "services refuse"),
		some(n.Loop.AllFailed["use_all"], "service uses endpoints that all fail their check", "services use endpoints that all fail their check"),
		some(n.Loop.Services["in part"], "service is served in part", "services are served in part"),
		some(n.Loop.Services["pending"], "service is not synced yet", "services are not synced yet"),
		some(n.Files[source.Refused], "file is refused", "files are refused"),
		some(n.Files[source.Stale], "file is stale", "files are stale"),
		some(n.SettingsFaults, "fault in svcproxy.toml", "faults in svcproxy.toml"),
		some(n.Drains[healthz.DrainedNode], "drain of this host", ""),
		some(n.Held, "change is held", "changes are held"),
	}
	problems = slices.DeleteFunc(problems, func(p string) bool { return p == "" })
	if len(problems) == 0 {
		problems = []string{"no problems"}
	}
	return strings.Join(slices.Concat([]string{some(services, "service", "services")}, problems), ", ")
}

// some returns a number with its noun; empty for 0, but of services.
func some(n int, one, more string) string {
	switch {
	case n == 1:
		return "1 " + one
	case n == 0 && one != "service":
		return ""
	}
	return fmt.Sprintf("%d %s", n, more)
}

// failureOf returns the name under which kube-proxy counts a failed sync of a mode.
func failureOf(m modes.Mode, err error) string {
	if xtables.IsRestoreError(err) {
		return healthz.RestoreFailed
	}
	return m.CountedAs
}

// tracked returns how many connections the kernel tracks in this network namespace, and how
// many it can; 0 where it does not say, as without connection tracking.
func tracked() (flows, limit int) {
	n, _ := sysctl.Get("net/netfilter/nf_conntrack_count")
	most, _ := sysctl.Get("net/netfilter/nf_conntrack_max")
	flows, err := strconv.Atoi(n)
	limit, err2 := strconv.Atoi(most)
	if err != nil || err2 != nil {
		return 0, 0
	}
	return flows, limit
}

// countDrains counts drains, by what they drain, and says when the oldest of them began.
func countDrains(d *conditions.Drains) (n map[string]int, oldest map[string]time.Time) {
	n, oldest = make(map[string]int), make(map[string]time.Time)
	for _, one := range d.List() {
		kind := healthz.DrainedEndpoints
		if one.Target.Node {
			kind = healthz.DrainedNode
		}
		n[kind]++
		if was, ok := oldest[kind]; !ok || one.At.Before(was) {
			oldest[kind] = one.At
		}
	}
	return n, oldest
}
