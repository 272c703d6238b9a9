package remote

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An Answer compares what a server lists of one part with what was known of that part.
type Answer struct {
	Known int // objects that were known
	Lists int // objects that the server lists
	Lacks int // known objects that it does not list

	Version, Newest uint64 // of the list, and the newest that was known; 0: not known
}

// Doubt returns why an answer is held until the operator confirms it: it lists nothing, or it is
// older than what was known and lacks a part of that. Empty: it is used.
func (a Answer) Doubt(what string) string {
	switch {
	case a.Known == 0:
		return ""
	case a.Lists == 0:
		return fmt.Sprintf("it lists no %s, and %d were known", what, a.Known)
	case a.Version != 0 && a.Version < a.Newest && a.Lacks > 0:
		return fmt.Sprintf("its list of %s is of version %d, before %d, and lacks %d of %d", what, a.Version, a.Newest, a.Lacks, a.Known)
	}
	return ""
}

// SetAllowEmpty sets whether every answer is used, also an empty or an older one.
func (s *State) SetAllowEmpty(allow bool) { s.allowEmpty.Store(allow) }

// AllowsEmpty reports whether every answer is used.
func (s *State) AllowsEmpty() bool { return s.allowEmpty.Load() }

// Hold says that the answer about a part is not used, and why.
func (s *State) Hold(part int, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, had := s.holds[part]
	s.holds[part] = why
	if !had {
		s.log.Warn("holding the server's answer; keeping the last known services until it is complete again or svcproxy confirm", "server", s.conn.Server, "why", why)
	}
}

// Release says that the answer about a part is used. Parts that were not held stay as they are.
func (s *State) Release(part int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, had := s.holds[part]; !had {
		return
	}
	delete(s.holds, part)
	if len(s.holds) == 0 {
		s.log.Info("using the server's answer again", "server", s.conn.Server)
	}
}

// Held returns how many answers are held: 1 while any part is.
func (s *State) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(1, len(s.holds))
}

// heldText is the warning about what is held. The caller holds s.mu.
func (s *State) heldText() string {
	var why []string
	for _, part := range slices.Sorted(maps.Keys(s.holds)) {
		why = append(why, s.holds[part])
	}
	return fmt.Sprintf("HELD: the answer of the server is not used, services stay as last known: %s; svcproxy confirm lets it through", strings.Join(why, "; "))
}

// A Confirmer is a source whose answers may be held.
type Confirmer interface {
	SetAllowEmpty(bool)
	Held() int

	// Confirm has what is held used, and reports whether anything was held.
	Confirm(context.Context) (bool, error)
}
