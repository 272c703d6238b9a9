//go:build !nokubernetes

package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// A cluster is all that is known of the objects of the API server. It belongs to
// the goroutine of Run.
type cluster struct {
	src     *Source
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
	entries entries
	ranges  ranges
}

// A heldList is a list that is not used, with the events that followed it, in order.
type heldList struct {
	version uint64
	steps   []step // none: a new session has not listed the kind yet
}

func newCluster(src *Source, sink source.Sink) *cluster {
	c := &cluster{
		src: src, started: time.Now(), fresh: true,
		held: map[kind]*heldList{}, newest: map[kind]uint64{},
		entries: entries{remote.NewPublisher(src.State, sink), map[source.Key]*entry{}, map[source.Key]source.Key{}},
		ranges:  ranges{all: map[string][]netip.Prefix{}},
	}
	c.keeper = remote.NewKeeper(src.lastKnownPath(), src.Log, c.lastKnown)
	return c
}

// begin has changes wait until a new session has listed all kinds of objects:
// services of one cluster and endpoints of another make no sense.
func (c *cluster) begin(server string) {
	c.heard, c.ranges.listed = [kinds]bool{}, false
	for _, h := range c.held {
		h.steps = nil // of the session before
	}
	if server != c.server {
		c.newest = c.src.recallVersions(server)
		c.fresh, c.server = true, server
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
		for key := range c.entries.all {
			c.entries.out.Touch(key, true)
		}
		c.fresh = false
		c.keepSoon() // also where it has the same: under its name
	}
	for key, hurry := range c.entries.out.Dirty(now) {
		c.entries.look(key, now, hurry)
	}
	set, deleted := c.entries.out.Flush()
	if set+deleted > 0 {
		c.keepSoon()
	}
	if !c.synced {
		c.src.Log.Info("listed everything", "services", set, "slices", len(c.entries.owners), "took", now.Sub(c.started), "merged", time.Since(now))
		c.announce()
	}
	c.tellCIDRs()
}

// ranges are those that ClusterIPs come from.
type ranges struct {
	all    map[string][]netip.Prefix // by the name of the ServiceCIDR object
	listed bool                      // in the present session
	told   []netip.Prefix            // of all, or as last known
}

// set takes a ServiceCIDR object as it is now; nil: it is gone.
func (r *ranges) set(name string, list []netip.Prefix) {
	if r.all[name] = list; list == nil {
		delete(r.all, name)
	}
}

// tellCIDRs tells of which ranges ClusterIPs are, if that has changed.
func (c *cluster) tellCIDRs() {
	if !c.ranges.listed {
		return
	}
	var all []netip.Prefix
	for _, list := range c.ranges.all {
		all = append(all, list...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	if all = slices.Compact(all); !slices.Equal(all, c.ranges.told) {
		c.ranges.told = all
		c.src.OnServiceCIDRs(all)
		c.keepSoon()
	}
}

// keepSoon says that there is something new to keep. Before everything has been
// listed, what was last known is better than what is known now.
func (c *cluster) keepSoon() {
	if c.synced {
		c.keeper.Note()
	}
}

// announce says that all that existed was handed on.
func (c *cluster) announce() {
	c.synced = true
	c.keepSoon()
	c.src.Synced()
	c.entries.out.Synced()
}

// nextDue returns when flush or the keeper has something to do next; some: they have. Before all kinds
// are listed flush has nothing to do: the last list calls it.
func (c *cluster) nextDue() (next time.Time, some bool) {
	if c.listed() {
		next, some = c.entries.out.Due()
	}
	if at, changed := c.keeper.Due(); changed && c.keeps() && (!some || at.Before(next)) {
		return at, true
	}
	return next, some
}

// lastKnown returns all that was handed on. It is called where keeps returns true.
func (c *cluster) lastKnown() (remote.Header, []remote.Handed) {
	k := &lastKnown{
		Head:      remote.Head{Server: c.server, Written: time.Now()},
		ProxyName: c.src.ProxyName, NodeName: c.src.NodeName, Node: c.onNode, Ranges: c.ranges.told, Versions: maps.Clone(c.newest),
	}
	var services []remote.Handed
	for _, e := range c.entries.all {
		if e.used.Service != nil {
			services = append(services, e.used)
		}
	}
	return k, services
}

// fallBack serves what was last known, until the API server has been listed. It is
// called once, when that has failed or takes long.
func (c *cluster) fallBack() {
	if c.synced {
		return
	}
	known, services, err := c.src.recall()
	switch {
	case err != nil:
		c.src.Log.Warn("the last known services of the cluster cannot be used", "err", err)
	case known != nil:
		c.use(known, services)
		return
	}
	if c.src.Beside {
		c.src.Log.Warn("cannot list the cluster; continuing with the other sources")
		c.entries.out.Synced()
	}
}

// use hands on what was last known.
func (c *cluster) use(known *lastKnown, services []remote.Handed) {
	for _, s := range services {
		c.entries.out.Put(&c.entries.entry(s.Service.Key, true).used, s) // created is of what this session has heard
	}
	c.src.Log.Warn("cannot list the API server; using the last known services", "services", len(services), "written", known.Written)
	c.src.Stale(fmt.Sprintf("STALE: the API server has not been listed: the %d services of the cluster are as last known at %s",
		len(services), known.Written.Format(time.RFC3339)))
	if known.Node != nil {
		c.src.OnNode(known.Node)
	}
	c.entries.out.Flush()
	if c.ranges.told = known.Ranges; len(c.ranges.told) > 0 {
		c.src.OnServiceCIDRs(c.ranges.told)
	}
	c.entries.out.Synced()
}
