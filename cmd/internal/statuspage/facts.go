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
	// maxProblems is how many problems are listed.
	maxProblems = 50

	// maxNamespaces is how many namespaces the form offers.
	maxNamespaces = 200

	// maxVersions is how many versions of files are shown.
	maxVersions = 20

	// gatherTime is how long gathering facts may take.
	gatherTime = 10 * time.Second
)

// facts is the data that all answers of a moment share. Its size grows with the number of files, not of services.
type facts struct {
	at         time.Time
	summary    control.Summary
	sources    []source.Status // with all files
	counts     report.Counts
	down       []problem // the first endpoints that fail their check
	namespaces []string
}

// known returns the facts that were gathered last, and reports whether they are at most a moment old.
func (p *Page) known() (f *facts, inTime bool, err error) {
	f, inTime = p.facts.Get()
	if f == nil {
		return nil, false, errUnknown
	}
	return f, inTime, nil
}

var errUnknown = errors.New("nothing is known yet; ask again")

// gather gathers facts. It may read from a disk.
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
	// A batch has up to maxBatch services with up to batchSize endpoints and addresses, to bound the memory of their status.
	// A single larger service is a batch of its own.
	batchSize = 20_000
	maxBatch  = 4_000
)

// inBatches yields the status of some services, in the order of their names. Each batch iterates over all services.
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

// namespacesOf returns the first namespaces of services, by name.
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

// A history is the versions of files that the pages show.
type history struct {
	newest  []keep.Revision
	changed map[string]time.Time // when the newest version of a file was accepted, by the name of the file
}

// versions reads the history. If that fails, the history is empty, and status shows the reason.
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
