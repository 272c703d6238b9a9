package changes

import (
	"strconv"
	"strings"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// The kinds of objects in addition to those of package report.
const (
	FileObject    = "file"    // a file, or an object of an API; its states are source.FileStates
	SessionObject = "bgp"     // a BGP session, by the address of the router: "established" or "down"
	ModeObject    = "mode"    // its state is the name of the mode in use
	HostObject    = "host"    // "in use" or "drained"
	RepairsObject = "repairs" // repairs of one family; the state is their number since the start
)

// eachState visits the state of every tracked object.
func (c *Tracker) eachState(visit func(report.Object, string, func() string)) {
	s := c.Snapshot()
	report.EachState(s, visit)
	c.eachFile(visit)
	for _, session := range c.Sessions() {
		state := "down"
		if session.Up() {
			state = announcer.Established
		}
		visit(report.Object{Kind: SessionObject, Name: session.Peer.String()}, state, session.Why)
	}
	mode, why := c.Mode()
	visit(report.Object{Kind: ModeObject, Name: ModeObject}, mode, func() string { return why })
	host := "in use"
	if s.Drained {
		host = "drained"
	}
	visit(report.Object{Kind: HostObject, Name: s.Node.Name}, host, func() string { return "" })
	for i := range s.Syncs {
		n, why := c.repairs.get(s.Syncs[i].Family)
		visit(report.Object{Kind: RepairsObject, Name: s.Syncs[i].Family.Title()}, strconv.Itoa(n), func() string { return why })
	}
}

// eachFile visits the files and API objects of all sources.
func (c *Tracker) eachFile(visit func(report.Object, string, func() string)) {
	for _, src := range c.Sources() {
		for _, list := range [][]source.FileStatus{src.Files, src.Objects} {
			for i := range list {
				f := &list[i]
				visit(report.Object{Kind: FileObject, Name: f.Path}, string(f.State), func() string {
					if bad := source.FirstError(f.Faults); bad != nil {
						return bad.String()
					}
					return ""
				})
			}
		}
	}
}

// Repaired counts a sync that repaired something. It never blocks.
func (c *Tracker) Repaired(r loop.SyncResult) {
	if r.Err != nil || len(r.Repairs) == 0 {
		return
	}
	var causes []string
	for _, cause := range r.Repairs {
		causes = append(causes, string(cause))
	}
	c.repairs.add(r.Family, strings.Join(causes, ", "))
}

// repairs counts the repairs of each family.
type repairs struct {
	mu sync.Mutex
	of map[policy.Family]repair
}

type repair struct {
	n   int
	why string // causes of the last repair
}

func (r *repairs) add(fam policy.Family, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[fam] = repair{r.of[fam].n + 1, why}
}

func (r *repairs) get(fam policy.Family) (n int, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[fam].n, r.of[fam].why
}
