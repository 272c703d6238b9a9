//go:build !nokubernetes

package kubernetes

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// A kind is one of the kinds of objects that are read.
type kind int

const (
	services kind = iota
	endpointSlices
	nodes
	kinds int = iota

	// serviceCIDRs are not waited for: API servers before 1.33 have none, and not
	// everybody may read them.
	serviceCIDRs = kind(kinds)
)

func (k kind) String() string {
	return [...]string{"services", "endpointslices", "nodes", "servicecidrs"}[k]
}

// A step is something to do in the goroutine of Run.
type step func(*cluster)

// A cluster is all that is known of the objects of the API server. It belongs to
// the goroutine of Run.
type cluster struct {
	src     *Source
	out     *remote.Publisher
	server  string      // of the present session
	heard   [kinds]bool // in the present session
	fresh   bool        // nothing was handed on yet of what server has
	synced  bool        // all that existed was handed on
	started time.Time
	node    *source.ClusterNode // as last heard
	onNode  *source.ClusterNode // as last handed on
	unsaid  bool                // node, to OnNode
	held    map[kind]*heldList
	admits  time.Time       // until when every list is used
	newest  map[kind]uint64 // resource version that was heard; 0: none
	keeper  *remote.Keeper
	cidrs   map[string][]netip.Prefix // of services, by the name of the object
	told    []netip.Prefix            // of cidrs, or as last known
	ranges  bool                      // cidrs were listed in the present session

	entries map[source.Key]*entry
	owners  map[source.Key]source.Key // of each slice, by the name of its service
}

// An entry is what there is under the name of one service.
type entry struct {
	svc     *source.Service // nil: there are slices only
	created int64           // ns since 1970; 0: not known
	notes   notes           // what of the object is not used
	slices  []*slice        // in order of their names
	used    remote.Handed
	changed []time.Time // when slices were, since used was handed on
}

func newCluster(src *Source, sink source.Sink) *cluster {
	c := &cluster{
		src: src, out: remote.NewPublisher(src.State, sink), started: time.Now(), fresh: true,
		held: map[kind]*heldList{}, newest: map[kind]uint64{},
		entries: map[source.Key]*entry{}, owners: map[source.Key]source.Key{}, cidrs: map[string][]netip.Prefix{},
	}
	c.keeper = remote.NewKeeper(src.lastKnownPath(), src.Log, c.lastKnown)
	return c
}

// begin has changes wait until a new session has listed all kinds of objects:
// services of one cluster and endpoints of another make no sense.
func (c *cluster) begin(server string) {
	c.heard, c.ranges = [kinds]bool{}, false
	for _, h := range c.held {
		h.steps = nil // of the session before
	}
	if server != c.server {
		c.newest = c.src.recallVersions(server)
		c.fresh, c.server = true, server
	}
}

// entry returns that of a name, and has it looked at; now: at once.
func (c *cluster) entry(key source.Key, now bool) *entry {
	e := c.entries[key]
	if e == nil {
		e = &entry{}
		c.entries[key] = e
	}
	c.out.Touch(key, now)
	return e
}

// setService takes a service as it is now; nil: there is none to serve.
func (c *cluster) setService(key source.Key, svc *service) {
	e := c.entry(key, true)
	if svc == nil {
		e.svc, e.notes = nil, notes{}
		return
	}
	e.svc, e.created, e.notes = svc.Service, svc.created, svc.notes
}

// setSlice takes a slice as it is now; nil: it is gone, or of no service.
func (c *cluster) setSlice(key source.Key, s *slice) {
	if owner, had := c.owners[key]; had && (s == nil || s.service != owner) {
		c.entry(owner, false).remove(key.Name)
		delete(c.owners, key)
	}
	if s != nil {
		c.entry(s.service, false).put(s)
		c.owners[key] = s.service
	}
}

func (e *entry) find(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *slice, name string) int { return strings.Compare(s.name, name) })
}

// maxChanged is how many changes of one service are timed that are handed on together.
const maxChanged = 100

func (e *entry) put(s *slice) {
	i, found := e.find(s.name)
	if !found {
		e.slices = slices.Insert(e.slices, i, nil)
	}
	if old := e.slices[i]; !s.changed.IsZero() && (old == nil || !old.changed.Equal(s.changed)) && len(e.changed) < maxChanged {
		e.changed = append(e.changed, s.changed)
	}
	e.slices[i] = s
}

func (e *entry) remove(name string) {
	if i, found := e.find(name); found {
		e.slices = slices.Delete(e.slices, i, i+1)
	}
}

// setNode takes the Node object of this host; nil: there is none.
func (c *cluster) setNode(n *source.ClusterNode) {
	c.node, c.unsaid = n, true
}

// listed reports whether the present session has listed all kinds. Until then
// nothing is handed on.
func (c *cluster) listed() bool { return !slices.Contains(c.heard[:], false) }

// keeps reports whether all that was handed on came from the present server. Then it can be written as what
// that server had, also while one of its lists is held.
func (c *cluster) keeps() bool { return c.synced && !c.fresh }

// flush hands on, in one step, what changed and need not wait.
func (c *cluster) flush(now time.Time) {
	if !c.listed() {
		return
	}
	if c.unsaid {
		if !reflect.DeepEqual(c.node, c.onNode) { // its status is written every few minutes at least
			c.keepSoon()
		}
		c.src.OnNode(c.node)
		c.onNode, c.unsaid = c.node, false
	}
	if c.fresh { // what was last known, or another server had, may be gone, and moves nowhere
		for key := range c.entries {
			c.out.Touch(key, true)
		}
		c.fresh = false
		c.keepSoon() // also where it has the same: under its name
	}
	for key, hurry := range c.out.Dirty(now) {
		c.look(key, now, hurry)
	}
	set, deleted := c.out.Flush()
	if set+deleted > 0 {
		c.keepSoon()
	}
	if !c.synced {
		c.src.Log.Info("listed everything", "services", set, "slices", len(c.owners), "took", now.Sub(c.started), "merged", time.Since(now))
		c.announce()
	}
	c.tellCIDRs()
}

// setCIDRs takes a ServiceCIDR object as it is now; nil: it is gone.
func (c *cluster) setCIDRs(name string, list []netip.Prefix) {
	if c.cidrs[name] = list; list == nil {
		delete(c.cidrs, name)
	}
}

// tellCIDRs tells of which ranges ClusterIPs are, if that has changed.
func (c *cluster) tellCIDRs() {
	if !c.ranges {
		return
	}
	var all []netip.Prefix
	for _, list := range c.cidrs {
		all = append(all, list...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	if all = slices.Compact(all); !slices.Equal(all, c.told) {
		c.told = all
		c.src.OnServiceCIDRs(all)
		c.keepSoon()
	}
}

// announce says that all that existed was handed on.
func (c *cluster) announce() {
	c.synced = true
	c.keepSoon()
	c.src.Synced()
	c.out.Synced()
}

// look hands on what became of one name.
func (c *cluster) look(key source.Key, now time.Time, hurry bool) {
	e := c.entries[key]
	if e.svc == nil {
		c.out.Remove(key, &e.used)
		if len(e.slices) == 0 {
			delete(c.entries, key)
		}
		return
	}
	next, unused := merge(e.svc, e.slices)
	if c.out.Set(&e.used, remote.Handed{Since: e.created, Service: next, Changed: e.changed}, e.warnings(unused), now, hurry) {
		e.svc, e.changed = next, nil // one copy
		e.share()
	} else if e.used.Service != nil && e.used.Service.Equal(next) {
		e.changed = nil // they changed nothing
	}
}

// share makes the only slice use the endpoints that were handed on, where they
// say all that it said.
func (e *entry) share() {
	if len(e.slices) == 1 && len(e.slices[0].endpoints) == len(e.used.Service.Endpoints) {
		e.slices[0].endpoints = e.used.Service.Endpoints
	}
}

// warnings say what is not used of the service, of its slices, and of both together.
func (e *entry) warnings(merged notes) []source.Fault {
	var out []source.Fault
	add := func(n *notes) {
		for _, line := range n.all() {
			out = append(out, source.Fault{Msg: fmt.Sprintf("service %q: %s", e.svc.Key, line), Warning: true})
		}
	}
	add(&e.notes)
	for _, s := range e.slices {
		add(&s.notes)
	}
	add(&merged)
	return out
}

// nextDue returns when flush or the keeper has something to do next; some: they have. Before all kinds
// are listed flush has nothing to do: the last list calls it.
func (c *cluster) nextDue() (next time.Time, some bool) {
	if c.listed() {
		next, some = c.out.Due()
	}
	if at, changed := c.keeper.Due(); changed && c.keeps() && (!some || at.Before(next)) {
		return at, true
	}
	return next, some
}
