package remote

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A State is what a source knows of itself, and whether all that it reads of its server is
// being watched. Its methods may be called from any goroutine.
type State struct {
	name   string
	log    *slog.Logger
	failed chan struct{}
	first  sync.Once

	allowEmpty atomic.Bool

	mu       sync.Mutex
	watching []bool
	conn     source.Connection
	synced   bool
	stale    string                           // of services that are as last known
	holds    map[int]string                   // why answers about parts are not used
	broken   map[source.Key]source.FileStatus // objects of which not all is used as it stands
}

// NewState is of the source of a name, which watches so many parts of its server, each by itself.
func NewState(name string, log *slog.Logger, parts int) *State {
	return &State{
		name: name, log: log, failed: make(chan struct{}), watching: make([]bool, parts),
		conn:  source.Connection{Since: time.Now(), Error: "not yet reached"},
		holds: map[int]string{}, broken: map[source.Key]source.FileStatus{},
	}
}

// Status returns it as source.Source wants it.
func (s *State) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conn
	st := source.Status{Source: s.name, Connection: &conn, Synced: s.synced}
	if len(s.holds) > 0 {
		st.Warnings = append(st.Warnings, s.heldText())
	}
	if s.stale != "" {
		st.Warnings = append(st.Warnings, s.stale)
	}
	for _, o := range s.broken {
		st.Objects = append(st.Objects, o)
	}
	slices.SortFunc(st.Objects, func(a, b source.FileStatus) int { return strings.Compare(a.Path, b.Path) })
	return st
}

// Synced says that services are as the server has them.
func (s *State) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.stale = true, ""
}

// Stale says, until Synced, why services are not as the server has them.
func (s *State) Stale(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = why
}

// record records the faults of an object, and whether it is used all the same. No faults: it is used as it stands.
func (s *State) record(key source.Key, used bool, faults []source.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.broken[key]
	if len(faults) == 0 {
		delete(s.broken, key)
		return
	}
	now := source.FileStatus{Path: key.String(), State: source.Accepted, Services: 1, Since: time.Now(), Faults: faults}
	switch {
	case faults[0].Warning:
	case used:
		now.State = source.Stale
	default:
		now.State, now.Services = source.Refused, 0
	}
	if had && old.State == now.State {
		now.Since = old.Since
	} else if now.State == source.Accepted {
		s.log.Warn("part of a service is not used", "service", key.String(), "parts", len(faults), "first", faults[0].String())
	} else {
		s.log.Warn("service cannot be used as it stands", "service", key.String(), "stays_as_before", used, "first", faults[0].String())
	}
	s.broken[key] = now
}
