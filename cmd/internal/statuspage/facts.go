package statuspage

import (
	"context"
	"errors"
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

	// maxDown is how many services are, of those with endpoints that fail their check.
	maxDown = 10

	// maxNamespaces is how many namespaces can be chosen from.
	maxNamespaces = 200

	// maxVersions is how many versions of files are shown.
	maxVersions = 20

	// gatherTime bounds how long facts are gathered.
	gatherTime = 10 * time.Second
)

// facts are what all answers of a moment have in common. Their size does not grow with the services.
type facts struct {
	at         time.Time
	summary    control.Summary
	sources    []source.Status // what sources know of themselves, with all files
	counts     report.Counts
	down       []report.ServiceStatus // the first services with endpoints that fail their check
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
		keys := report.Find(s, report.Filter{State: policy.Down.String()})
		f.down = statusOf(s, keys[:min(len(keys), maxDown)])
	}
	f.namespaces = namespacesOf(s)
	return f
}

// statusOf returns the status of some services, in the order of their names.
func statusOf(s *report.Snapshot, keys []source.Key) []report.ServiceStatus {
	if len(keys) == 0 {
		return nil
	}
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
