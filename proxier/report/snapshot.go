package report

import (
	"iter"
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
