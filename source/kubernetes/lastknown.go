//go:build !nokubernetes

package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// lastKnownName is the file in the state directory that has what a cluster last said.
const lastKnownName = Name + ".json.gz"

// A lastKnown says of which cluster, and for whom, the kept services are.
type lastKnown struct {
	remote.Head
	ProxyName string              `json:"proxy_name"`
	NodeName  string              `json:"node_name"`
	Node      *source.ClusterNode `json:"node"`                    // what it said of this host; nil: nothing
	Ranges    []netip.Prefix      `json:"service_cidrs,omitempty"` // that ClusterIPs come from
	Versions  map[kind]uint64     `json:"versions,omitempty"`      // the newest that were heard, by kind
}

// lastKnownPath returns where what is known is kept; empty: nowhere.
func (s *Source) lastKnownPath() string {
	if s.StateDir == "" {
		return ""
	}
	return filepath.Join(s.StateDir, lastKnownName)
}

// keepSoon says that there is something new to keep. Before everything has been
// listed, what was last known is better than what is known now.
func (c *cluster) keepSoon() {
	if c.synced {
		c.keeper.Note()
	}
}

// lastKnown returns all that was handed on. It is called where keeps returns true.
func (c *cluster) lastKnown() (remote.Header, []remote.Handed) {
	k := &lastKnown{
		Head:      remote.Head{Server: c.server, Written: time.Now()},
		ProxyName: c.src.ProxyName, NodeName: c.src.NodeName, Node: c.onNode, Ranges: c.told, Versions: maps.Clone(c.newest),
	}
	var services []remote.Handed
	for _, e := range c.entries {
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
		c.src.Log.Warn("what the cluster last said cannot be used", "err", err)
	case known != nil:
		c.use(known, services)
		return
	}
	if c.src.Beside {
		c.src.Log.Warn("nothing is known of the cluster: the other sources go on without it")
		c.out.Synced()
	}
}

// recall returns what this cluster last said; nil: nothing is known.
func (s *Source) recall() (*lastKnown, []remote.Handed, error) {
	if s.StateDir == "" {
		return nil, nil, nil
	}
	known := new(lastKnown)
	services, err := remote.Load(s.lastKnownPath(), known)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if known.ProxyName != s.ProxyName || known.NodeName != s.NodeName {
		return nil, nil, fmt.Errorf("it is of node %q and proxy name %q", known.NodeName, known.ProxyName)
	}
	if server := s.Connection().Server; server != "" && known.Server != server {
		return nil, nil, fmt.Errorf("it is of the API server %s", known.Server)
	}
	return known, services, nil
}

// recallVersions returns the newest resource versions that a server told an earlier run.
func (s *Source) recallVersions(server string) map[kind]uint64 {
	known := new(lastKnown)
	if s.StateDir == "" || remote.LoadHead(s.lastKnownPath(), known) != nil || known.Server != server || known.Versions == nil {
		return map[kind]uint64{}
	}
	return known.Versions
}

// use hands on what was last known.
func (c *cluster) use(known *lastKnown, services []remote.Handed) {
	for _, s := range services {
		c.out.Put(&c.entry(s.Service.Key, true).used, s) // created is of what this session has heard
	}
	c.src.Log.Warn("the API server has not been listed: services are as last known", "services", len(services), "written", known.Written)
	c.src.Stale(fmt.Sprintf("STALE: the API server has not been listed: the %d services of the cluster are as last known at %s",
		len(services), known.Written.Format(time.RFC3339)))
	if known.Node != nil {
		c.src.OnNode(known.Node)
	}
	c.out.Flush()
	if c.told = known.Ranges; len(c.told) > 0 {
		c.src.OnServiceCIDRs(c.told)
	}
	c.out.Synced()
}
