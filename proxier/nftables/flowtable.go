package nftables

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// Options are the settings of nftables mode.
type Options struct {
	// Flowtable names the interfaces between which packets of established connections to
	// endpoints go on before they meet any rule; empty: none do. Offload: by hardware, where it is there.
	Flowtable []string
	Offload   bool

	Log *slog.Logger // for warnings; nil: none
}

// A shortWay is what a Backend knows of its flow table.
type shortWay struct {
	Options
	fam proxier.Family

	mu      sync.Mutex
	decided bool
	links   map[string]int // the indexes of its interfaces when it was decided
	warning string         // what is missing; empty: nothing
	next    string         // warning, once the kernel holds what was decided
	failing bool           // the last one that was written was refused
}

func (w *shortWay) init(fam proxier.Family, opts Options) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	w.Options, w.fam = opts, fam
}

// present returns the indexes of those configured interfaces that exist, by name.
func (w *shortWay) present() (map[string]int, error) {
	found := make(map[string]int, len(w.Flowtable))
	for _, name := range w.Flowtable {
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
func (w *shortWay) last() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.links
}

// outdated reports whether interfaces have come or gone since it was decided, also one that is
// there again: the kernel has taken the former out.
func (w *shortWay) outdated() bool {
	if len(w.Flowtable) == 0 {
		return false
	}
	now, err := w.present()
	w.mu.Lock()
	defer w.mu.Unlock()
	return err == nil && w.decided && !maps.Equal(now, w.links)
}

// decide notes what was decided. What is missing is told once the kernel holds the rest: until
// then it may refuse that, too, as it did before.
func (w *shortWay) decide(present map[string]int, missing string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided, w.links, w.next = true, present, missing
}

// warn has warnings tell of what is missing, and the log where that is news.
func (w *shortWay) warn(warning string) {
	w.mu.Lock()
	news := warning != w.warning
	w.warning = warning
	w.mu.Unlock()
	if news && warning != "" {
		w.Log.Warn("the flowtable is not as the settings ask", "family", w.fam, "why", warning)
	}
}

// failed notes that the kernel refused the flow table after all: an interface may have gone
// meanwhile. The next look decides again, but the second time in a row only where interfaces
// have come or gone since, so that looks do not cause repairs without end.
func (w *shortWay) failed(err error) {
	w.mu.Lock()
	if !w.failing {
		w.links = nil
	}
	w.failing = true
	w.mu.Unlock()
	w.warn(fmt.Sprintf("packets take the usual way: %v", err))
}

// holds notes that the kernel holds a flow table as it was decided; nil: none, which says nothing.
func (w *shortWay) holds(f *nft.Flowtable) {
	if f == nil {
		return
	}
	w.mu.Lock()
	w.failing = false
	warning := w.next
	w.mu.Unlock()
	w.warn(warning)
}

// missing returns the interfaces of the settings that are not among links.
func (w *shortWay) missing(links map[string]int) []string {
	return slices.DeleteFunc(slices.Clone(w.Flowtable), func(name string) bool {
		_, there := links[name]
		return there
	})
}
