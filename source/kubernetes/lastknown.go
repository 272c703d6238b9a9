//go:build !nokubernetes

package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

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
