package source

import (
	"net/netip"
	"time"
)

// A ClusterNode is what a cluster says of this host.
type ClusterNode struct {
	Zone     string
	PodCIDRs []netip.Prefix // its pods have addresses of these
	Addrs    []netip.Addr   // its primary address of each family
	Eligible bool           // load balancers may send to it
}

// A Connection is how a source reaches the server it hears of services from.
type Connection struct {
	Server    string    `json:"server,omitempty"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`           // of Connected
	Error     string    `json:"error,omitempty"` // why it is not
}
