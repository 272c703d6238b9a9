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
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
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
	links   map[string]int // the indexes of its interfaces when it was decided
	warning string         // what is missing; empty: nothing
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

// outdated reports whether interfaces have come or gone since it was decided, also one that is
// there again: the kernel has taken the former out.
func (s *flowtableState) outdated() bool {
	if len(s.Flowtable) == 0 {
		return false
	}
	now, err := s.present()
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && !maps.Equal(now, s.links)
}

// missing returns the interfaces of the settings that are not among links.
func (s *flowtableState) missing(links map[string]int) []string {
	return slices.DeleteFunc(slices.Clone(s.Flowtable), func(name string) bool { return links[name] > 0 })
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

// holds notes that the kernel holds a flow table; nil: none, which says nothing. What is missing of it is told only
// now: until then the kernel may refuse the rest, too, as it did before.
func (s *flowtableState) holds(f *nft.Flowtable, warning string) {
	if f == nil {
		return
	}
	s.mu.Lock()
	s.failing = false
	s.mu.Unlock()
	s.warn(warning)
}

// accepted returns the best flow table of these devices that the kernel takes, nil where it takes
// none, and what it refused. m is what our table has; nil: unknown.
func (t *tableConn) accepted(devices []string, offload bool, m *layout.Mirror) (flows *nft.Flowtable, refused string) {
	if len(devices) == 0 {
		return nil, ""
	}
	if !nft.FlowsRemovable() {
		return nil, "connections in one could not be closed: that needs kernel 6.1.32, or 6.4"
	}
	f := &nft.Flowtable{Name: layout.FlowtableName, Devices: devices, Offload: offload, Counter: true}
	err := t.tryFlowtable(f, m)
	if err != nil && f.Offload {
		refused = fmt.Sprintf("no hardware does it: %v", err)
		f.Offload = false
		err = t.tryFlowtable(f, m)
	}
	if err != nil {
		return nil, fmt.Sprintf("the kernel takes none: %v", err)
	}
	return f, refused
}

// tryFlowtable tests whether the kernel takes a flow table and the rule for it. It took what our table has, maybe of an
// earlier run.
func (t *tableConn) tryFlowtable(f *nft.Flowtable, m *layout.Mirror) error {
	if m != nil {
		if f.Equal(m.Flows) {
			return nil
		}
	} else if have, err := t.conn.List(t.Table()); err == nil && have != nil && f.Equal(have.Flowtables[f.Name]) {
		return nil
	}
	c := t.FillsFlows(f)
	batch := nft.NewBatch(t.Scratch())
	batch.AddTable(layout.TableComment)
	batch.AddFlowtable(f)
	batch.AddChain(&c.Chain)
	batch.AddRule(c.Name, c.Rules[0])
	return t.conn.Try(batch)
}
