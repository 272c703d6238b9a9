package statuspage

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

const (
	// maxProblems is how many problems are named.
	maxProblems = 50

	// maxNamespaces is how many namespaces can be chosen from.
	maxNamespaces = 200

	// maxVersions is how many versions of files are shown.
	maxVersions = 20

	// gatherTime bounds how long facts are gathered.
	gatherTime = 10 * time.Second
)

// facts are what all answers of a moment have in common. Their size does not grow with the services, but with the files.
type facts struct {
	at         time.Time
	summary    control.Summary
	sources    []source.Status // what sources know of themselves, with all files
	counts     report.Counts
	down       []problem // the first endpoints that fail their check
	namespaces []string
}

// known returns what was gathered last, and reports whether that is of this moment.
func (p *Page) known() (f *facts, inTime bool, err error) {
	f, inTime = p.facts.Get()
	if f == nil {
		return nil, false, errUnknown
	}
	return f, inTime, nil
}

var errUnknown = errors.New("nothing is known yet; ask again")

// gather gathers facts. It may take as long as a disk does.
func (p *Page) gather() *facts {
	ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
	defer cancel()
	f := &facts{at: time.Now(), counts: p.Counts()}
	f.summary, f.sources = p.Summary(ctx, maxProblems)
	s := p.Snapshot()
	if f.counts.Endpoints[policy.Down.String()] > 0 {
		f.down = downOf(s, f.at)
	}
	f.namespaces = namespacesOf(s)
	return f
}

// downOf returns the first endpoints that fail their check.
func downOf(s *report.Snapshot, now time.Time) (list []problem) {
	keys := report.Find(s, report.Filter{State: policy.Down.String()})
	for services := range inBatches(s, keys[:min(len(keys), maxProblems)]) {
		for _, svc := range services {
			to := serviceLink(svc.Key().String(), true)
			for _, e := range svc.Endpoints {
				switch {
				case len(list) == maxProblems:
					return list
				case e.State == policy.Down.String():
					list = append(list, problem{Subject: to, Address: e.Address, State: "DOWN", Why: "for " + control.Since(now, e) + ". " + control.Why(now, e)})
				}
			}
		}
	}
	return list
}

const (
	// batchSize is how many endpoints and addresses of services, of maxBatch services at most, have their status in memory at
	// once, unless one service has more.
	batchSize = 20_000
	maxBatch  = 4_000
)

// inBatches yields the status of some services, in the order of their names. Each batch costs a look at all services.
func inBatches(s *report.Snapshot, keys []source.Key) iter.Seq[[]report.ServiceStatus] {
	return func(yield func([]report.ServiceStatus) bool) {
		sizes := make(map[source.Key]uint64, len(keys))
		for _, k := range keys {
			sizes[k] = 0
		}
		for i := range s.Services {
			svc := s.Services[i].Service
			if _, wanted := sizes[svc.Key]; wanted {
				sizes[svc.Key] = uint64(len(svc.Endpoints)) + svc.Products().Frontends
			}
		}
		for len(keys) > 0 {
			n, size := 1, sizes[keys[0]]
			for ; n < min(len(keys), maxBatch) && size+sizes[keys[n]] <= batchSize; n++ {
				size += sizes[keys[n]]
			}
			if !yield(statusOf(s, keys[:n])) {
				return
			}
			keys = keys[n:]
		}
	}
}

// statusOf returns the status of some services, in the order of their names.
func statusOf(s *report.Snapshot, keys []source.Key) []report.ServiceStatus {
	wanted := make(map[source.Key]bool, len(keys))
	for _, k := range keys {
		wanted[k] = true
	}
	return report.StatusOf(s, func(svc *source.Service) bool { return wanted[svc.Key] }).Services
}

// namespacesOf returns the first namespaces that services have.
func namespacesOf(s *report.Snapshot) (list []string) {
	there := make(map[string]bool)
	for i := range s.Services {
		if name := s.Services[i].Namespace; !there[name] {
			there[name], list = true, append(list, name)
		}
	}
	slices.Sort(list)
	return list[:min(len(list), maxNamespaces)]
}

// A history is what is known of versions of files.
type history struct {
	newest  []keep.Revision
	changed map[string]time.Time // when the newest version of a file was accepted, by the name of the file
}

// versions reads the history. Where it cannot be read it is empty: status says why.
func (p *Page) versions() history {
	list, _ := p.History()
	h := history{list[:min(len(list), maxVersions)], make(map[string]time.Time)}
	for _, r := range list {
		if _, newer := h.changed[r.File]; !newer {
			h.changed[r.File] = r.At
		}
	}
	return h
}
