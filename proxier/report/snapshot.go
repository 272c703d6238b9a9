package report

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Snapshot is what a Loop holds at one moment, and whom to ask for what it does not know. What it points to never changes.
type Snapshot struct {
	claims.Snapshot

	Syncs   []Family // of each of Families
	Waiting []string // sources that are to be read before anything is programmed
	Drained bool     // this host is

	Unannounced []*source.Service // that would be announced if their unit were not refused

	Seen    ChangeCounts // since the start
	Pending ChangeCounts // not in the kernel yet

	Surroundings
}

// A Family is what a Loop knows of one family.
type Family struct {
	Family    policy.Family
	Host      policy.Host
	Backend   proxier.Backend                      // that is wanted
	Resolved  []*policy.Resolved                   // services as they were last resolved, in no order
	Announced map[source.Key][]policy.Announcement // of each service, what is announced if this host is not drained

	Known      bool                      // it is known what the kernel holds: all but Unfinished
	Unfinished map[source.Key]Unfinished // services that the kernel does not hold as they were last resolved

	LastSync, FailingSince time.Time
	Took                   time.Duration
	Err                    error
	Unserved               *proxier.PartialError // what the last sync that succeeded could not make
	Stalls                 []Stall
}

// An Unfinished is a service that the kernel holds in part, or not as it is known.
type Unfinished struct {
	Holds func(*policy.Frontend) bool
	Grows bool // it is large, and comes in pieces
}

// holds reports whether the kernel is known to hold a service as it was last resolved.
func (f *Family) holds(key source.Key) bool {
	_, unfinished := f.Unfinished[key]
	return f.Known && !unfinished
}

// holdsFrontend reports whether the kernel is known to hold a frontend of a service.
func (f *Family) holdsFrontend(key source.Key, fe *policy.Frontend) bool {
	if u, unfinished := f.Unfinished[key]; unfinished && u.Holds != nil {
		return u.Holds(fe)
	}
	return f.Known
}

// FrontendAddrs yields where packets to services are sent to, with the service.
func (f *Family) FrontendAddrs() iter.Seq2[proxier.FrontendAddr, *policy.Resolved] {
	return proxier.FrontendAddrs(&f.Host, slices.Values(f.Resolved))
}

// Labels returns the labels of the services in use that have any; nothing in it is to be changed.
func Labels(s *Snapshot) map[source.Key]map[string]string {
	labels := make(map[source.Key]map[string]string)
	for _, svc := range s.Services {
		if len(svc.Labels) > 0 {
			labels[svc.Key] = svc.Labels
		}
	}
	return labels
}

// Surroundings tell what else is known of a host. Each may be nil: that is not known. They are called from any goroutine.
type Surroundings struct {
	// Details returns what else is known of the endpoints of a service in use, by source.Service.EndpointAt.
	Details func(source.Key) map[netip.AddrPort]policy.Detail

	// Announcer knows what stands in the way of announcing.
	Announcer Announcer

	// Listening returns where processes of this host listen.
	Listening func() []Listener

	// Router returns by way of which router this host reaches an address; not valid: by none.
	Router func(netip.Addr) (netip.Addr, error)
}

// details returns Details of a service of which there can be some.
func (s *Snapshot) details(svc policy.Subject) map[netip.AddrPort]policy.Detail {
	if s.Details == nil || len(svc.Conditions) == 0 && svc.HealthCheck == nil {
		return nil
	}
	return s.Details(svc.Key)
}

// An Announcer says what stands in the way of announcing. Any goroutine may call it.
type Announcer interface {
	// Unavailable says why nothing is announced by one of the means; empty: it is.
	Unavailable(means source.Means) string

	// Unheard says why no router gets routes of a family, where BGP is available; empty: one does.
	Unheard(policy.Family) string

	// Unanswered returns the addresses that neighbours should be told of and are not, and why.
	Unanswered() map[netip.Addr]string
}

// A Listener is a socket of this host on which a process takes packets from anybody.
type Listener struct {
	source.Protocol
	netip.AddrPort      // of 0.0.0.0 or [::]: on all addresses
	Both           bool // on [::], and takes IPv4 packets too
	Own            bool // this program's
}

// takes reports whether packets to an address are the listener's.
func (l Listener) takes(a netip.Addr) bool {
	if !l.Addr().IsUnspecified() {
		return l.Addr() == a
	}
	return l.Both || policy.FamilyOf(l.Addr()) == policy.FamilyOf(a)
}

func (l Listener) String() string { return fmt.Sprintf("%s/%s", l.AddrPort, l.Protocol) }

// ChangeCounts are numbers of services that changed: anything but their endpoints, or these.
type ChangeCounts struct{ Services, Endpoints int }

// Add adds others.
func (c *ChangeCounts) Add(o ChangeCounts) {
	c.Services += o.Services
	c.Endpoints += o.Endpoints
}

// A Stall is work of a family that makes no progress.
type Stall struct {
	Family policy.Family
	Work   string // "sync", "plan" or "comparison with the kernel"
	For    string // what it waits for, as in "ip6tables-restore"
	Detail string // what is known of that besides, as who holds a lock
	Since  time.Time
}

// String says it without the time.
func (s Stall) String() string {
	text := "the " + s.Work + " waits for " + s.For
	if s.Detail != "" {
		text += "; " + s.Detail
	}
	return text
}

// Error makes a Stall the reason why something is not done yet.
func (s Stall) Error() string { return s.String() + ", since " + s.Since.Format(time.TimeOnly) }
