package nftables

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Options are the settings of nftables mode.
type Options struct {
	// Flowtable names the interfaces between which packets of established connections to
	// endpoints go on before they meet any rule; empty: none do. Offload: by hardware, where it is there.
	Flowtable []string
	Offload   bool

	Log *slog.Logger // for warnings; nil: none
}

// A flowtableState is what a Backend knows of its flow table, a short way for packets.
type flowtableState struct {
	Options
	fam policy.Family

	mu      sync.Mutex
	decided bool
	links   map[string]int // the indexes of its interfaces when it was decided
	warning string         // what is missing; empty: nothing
	next    string         // warning, once the kernel holds what was decided
	failing bool           // the last one that was written was refused
}

func (s *flowtableState) init(fam policy.Family, opts Options) {
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	s.Options, s.fam = opts, fam
}

// present returns the indexes of those configured interfaces that exist, by name.
func (s *flowtableState) present() (map[string]int, error) {
	found := make(map[string]int, len(s.Flowtable))
	for _, name := range s.Flowtable {
		switch index, err := links.Index(name); {
		case err != nil:
			return nil, err
		case index > 0:
			found[name] = index
		}
	}
	return found, nil
}

// last returns what present did when it was decided.
func (s *flowtableState) last() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links
}

// outdated reports whether interfaces have come or gone since it was decided, also one that is
// there again: the kernel has taken the former out.
func (s *flowtableState) outdated() bool {
	if len(s.Flowtable) == 0 {
		return false
	}
	now, err := s.present()
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.decided && !maps.Equal(now, s.links)
}

// decide notes what was decided. What is missing is told once the kernel holds the rest: until
// then it may refuse that, too, as it did before.
func (s *flowtableState) decide(present map[string]int, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decided, s.links, s.next = true, present, missing
}

// warn has warnings tell of what is missing, and the log where that is news.
func (s *flowtableState) warn(warning string) {
	s.mu.Lock()
	news := warning != s.warning
	s.warning = warning
	s.mu.Unlock()
	if news && warning != "" {
		s.Log.Warn("the flowtable is not as the settings ask", "family", s.fam, "why", warning)
	}
}

// failed notes that the kernel refused the flow table after all: an interface may have gone
// meanwhile. The next look decides again, but the second time in a row only where interfaces
// have come or gone since, so that looks do not cause repairs without end.
func (s *flowtableState) failed(err error) {
	s.mu.Lock()
	if !s.failing {
		s.links = nil
	}
	s.failing = true
	s.mu.Unlock()
	s.warn(fmt.Sprintf("packets take the usual way: %v", err))
}

// holds notes that the kernel holds a flow table as it was decided; nil: none, which says nothing.
func (s *flowtableState) holds(f *nft.Flowtable) {
	if f == nil {
		return
	}
	s.mu.Lock()
	s.failing = false
	warning := s.next
	s.mu.Unlock()
	s.warn(warning)
}

// missing returns the interfaces of the settings that are not among links.
func (s *flowtableState) missing(links map[string]int) []string {
	return slices.DeleteFunc(slices.Clone(s.Flowtable), func(name string) bool {
		_, there := links[name]
		return there
	})
}
