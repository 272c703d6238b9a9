// Package traffic counts connections, packets and bytes of services and endpoints, from
// what the kernel counts. A Collector reads, and answers with a Report.
//
//	connection tracking ──► what begins and ends ──► tally ──┐
//	                    └─► what there is ──────────────────► book ──► Report
//	IPVS ───────────────────► its own counters ──────────────┘
//
// Nothing is read unless a client asks, or metrics are wanted always. A connection
// is that of a service when its destination was one of the service's, and the kernel
// translated it to somewhere else.
//
//	report.go     what is told, and which part of it
//	book.go       accounts of services and endpoints; pure
//	tally.go      what connection tracking tells meanwhile
//	collector.go  when the kernel is read
//	metrics.go    the same for Prometheus
package traffic

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Figures are those of a service, or of an endpoint of it.
type Figures struct {
	Active      uint64 `json:"active"`      // connections that go on
	Connections uint64 `json:"connections"` // that began since counting did
	Packets     uint64 `json:"packets"`     // in both directions
	Bytes       uint64 `json:"bytes"`

	// Of the last two readings; 0 after the first.
	ConnectionRate float64 `json:"connections_per_second"`
	PacketRate     float64 `json:"packets_per_second"`
	ByteRate       float64 `json:"bytes_per_second"`
}

// A Report is what is known of the traffic of services.
type Report struct {
	Time  time.Time `json:"time"`  // of the last reading
	Since time.Time `json:"since"` // when counting began; ipvs mode also has what IPVS counted before
	Over  float64   `json:"over"`  // seconds between the last two readings, which rates are of; 0: there was one only

	Packets  bool     `json:"counts_packets"` // else packets and bytes are 0, because the kernel does not count them
	Lost     uint64   `json:"lost,omitempty"` // how often the kernel told of connections faster than they were read
	Problems []string `json:"problems,omitempty"`

	Services []Service `json:"services"`
	More     int       `json:"more,omitempty"` // services that had to be left out
}

// A Service is the traffic of one service, over all its ports and both families.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Figures
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	More      int        `json:"more,omitempty"` // endpoints that had to be left out
}

// Key returns the name of the service.
func (s *Service) Key() source.Key { return source.Key{Namespace: s.Namespace, Name: s.Name} }

// An Endpoint is the traffic of one endpoint of a service.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Gone    bool           `json:"gone,omitempty"` // it is none of the service any more
	Figures
}

// Keys that services can be sorted by.
var SortKeys = []string{"conns", "active", "bytes", "name"}

// Bounds of a Report.
const (
	DefaultLimit = 1_000   // services
	MaxLimit     = 10_000  // services that can be asked for
	maxEndpoints = 100_000 // of all of them
)

// A Query says what is wanted of a Report.
type Query struct {
	// Services that Names mean are told of even when they are idle. None: all that are not.
	Names     source.Selection
	Labels    map[source.Key]map[string]string // of services, where a pattern of Names is about them
	Endpoints bool
	Sort      string // one of SortKeys; "": "conns"
	Limit     int    // how many services, the first ones; 0: DefaultLimit
}

// Check returns what is wrong with a Query.
func (q *Query) Check() error {
	if err := q.Names.Check(); err != nil {
		return err
	}
	switch {
	case q.Sort != "" && !slices.Contains(SortKeys, q.Sort):
		return fmt.Errorf("cannot sort by %s; want %s", source.Excerpt(q.Sort), source.Either(SortKeys))
	case q.Limit < 0 || q.Limit > MaxLimit:
		return fmt.Errorf("cannot tell of %d services; want 0 to %d", q.Limit, MaxLimit)
	}
	return nil
}

// wants reports whether a service is to be told of even when it is idle.
func (q *Query) wants(k source.Key) bool {
	return len(q.Names) > 0 && q.Names.Matches(k, q.Labels[k])
}

// compare orders services by the key of a Query: the busiest first.
func (q *Query) compare(a, b *Service) int {
	var order int
	switch q.Sort {
	case "", "conns":
		order = cmp.Or(cmp.Compare(b.ConnectionRate, a.ConnectionRate), cmp.Compare(b.Connections, a.Connections))
	case "active":
		order = cmp.Compare(b.Active, a.Active)
	case "bytes":
		order = cmp.Or(cmp.Compare(b.ByteRate, a.ByteRate), cmp.Compare(b.Bytes, a.Bytes))
	}
	return cmp.Or(order, a.Key().Compare(b.Key()))
}

// AddTo adds traffic to the status of services, as far as r has it.
func (r *Report) AddTo(list []report.ServiceStatus) {
	counted := make(map[source.Key]*Service, len(r.Services))
	for i := range r.Services {
		counted[r.Services[i].Key()] = &r.Services[i]
	}
	for i := range list {
		if s := counted[list[i].Key()]; s != nil {
			s.addTo(&list[i])
		}
	}
}

func (s *Service) addTo(st *report.ServiceStatus) {
	st.Traffic = &report.TrafficStatus{ConnectionRate: s.ConnectionRate, Active: s.Active}
	active := make(map[string]uint64, len(s.Endpoints))
	for _, e := range s.Endpoints {
		active[e.Address.Addr().String()] += e.Active
	}
	st.Endpoints = slices.Clone(st.Endpoints)
	for i := range st.Endpoints {
		n := active[st.Endpoints[i].Address]
		st.Endpoints[i].Active = &n
	}
}
