package filter

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/xtables"
)

// Another program that puts its rules in front of ours again and again would have its
// every move answered by one of ours.
const (
	moveWindow = time.Minute
	moveLimit  = 3 // moves of one chain's jumps within moveWindow, after which they stay for a while

	firstPause = time.Minute // doubled each time
	maxPause   = time.Hour

	// movesShown is how long status shows that jumps were moved.
	movesShown = 24 * time.Hour
)

// An object is a chain of ours, the jumps of a built-in chain, or a set.
type object struct {
	kind        objectKind
	table, name string
}

type objectKind uint8

const (
	chainKind objectKind = iota
	jumpsKind
	setKind
)

func chainObject(table, name string) object { return object{chainKind, table, name} }
func jumpsObject(table, name string) object { return object{jumpsKind, table, name} }
func setObject(name string) object          { return object{kind: setKind, name: name} }

// text names an object as users see it. tool is the name of the programs.
func (o object) text(tool string) string {
	switch o.kind {
	case chainKind:
		return tool + " chain " + o.table + " " + o.name
	case jumpsKind:
		return tool + " jumps of " + o.table + " " + o.name
	}
	return "ip set " + o.name
}

// An order keeps the jumps of built-in chains to ours in front of foreign rules that may
// overrule them.
type order struct {
	mu     sync.Mutex
	places map[object]*place
}

// A place is what is known of the jumps of one built-in chain.
type place struct {
	ahead, aheadOfUser []string // foreign rules in front of them when they were last read

	moves  []time.Time // within moveWindow
	passed []string    // what the last move put them in front of
	last   time.Time   // that was then
	pause  time.Duration
	until  time.Time // no move before
}

// inPlace reports whether a built-in chain has the desired jumps to ours, after the one
// to xtables.UserChain, and before rules that may overrule them, unless those are left there
// for now.
func (o *order) inPlace(tab *xtables.Table, id object, want []string) bool {
	if !slices.Equal(tab.Jumps[id.name], want) || tab.UserJumps[id.name].Jumps > 0 {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.places[id]
	return len(tab.Ahead[id.name]) == 0 || p != nil && time.Now().Before(p.until)
}

// observe notes what is in front of the jumps of a table's built-in chains.
func (o *order) observe(table string, tab *xtables.Table) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for chain := range tab.Policies {
		id := jumpsObject(table, chain)
		ahead, user := tab.Ahead[chain], tab.AheadOfUser[chain]
		if len(tab.Jumps[chain]) == 0 {
			ahead, user = nil, nil
		}
		if o.places[id] == nil && len(ahead)+len(user) == 0 {
			continue
		}
		p := o.place(id)
		p.ahead, p.aheadOfUser = ahead, user
	}
}

// place returns the place of a chain, with mu held.
func (o *order) place(id object) *place {
	if o.places == nil {
		o.places = map[object]*place{}
	}
	if o.places[id] == nil {
		o.places[id] = &place{}
	}
	return o.places[id]
}

// due reports whether jumps that were left behind foreign rules are to be moved now.
func (o *order) due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, p := range o.places {
		if len(p.ahead) > 0 && !p.until.IsZero() && !now.Before(p.until) {
			return true
		}
	}
	return false
}

// moved notes a move in front of foreign rules. It returns for how long none follows; 0: the next may follow at once.
func (o *order) moved(id object, rules []string) (pause time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.place(id)
	now := time.Now()
	p.passed, p.last, p.ahead = rules, now, nil
	return p.count(now)
}

// count counts a move.
func (p *place) count(now time.Time) (pause time.Duration) {
	if p.pause > 0 && now.Sub(p.until) > p.pause { // the last move lasted
		p.pause = 0
	}
	p.moves = append(slices.DeleteFunc(p.moves, func(t time.Time) bool { return now.Sub(t) > moveWindow }), now)
	if p.pause == 0 && len(p.moves) < moveLimit {
		return 0
	}
	p.pause = min(max(2*p.pause, firstPause), maxPause)
	p.until, p.moves = now.Add(p.pause), nil
	return p.pause
}

// blockIn says where rules that are to stop clients of services belong.
func blockIn(id object) string {
	if id.table == "filter" && id.name == "FORWARD" {
		return "the chain " + xtables.UserChain + " or the table mangle"
	}
	return "the table mangle"
}

// warnings says of which chains the order is not as they were left by others.
func (o *order) warnings(tool string) (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, id := range slices.SortedFunc(maps.Keys(o.places), byName) {
		if w := o.places[id].warning(id, now); w != "" {
			list = append(list, fmt.Sprintf("%s %s %s: %s", tool, id.table, id.name, w))
		}
	}
	return list
}

// warning describes a place; empty: there is nothing to tell.
func (p *place) warning(id object, now time.Time) string {
	switch {
	case len(p.ahead) > 0 && now.Before(p.until):
		return fmt.Sprintf("another program keeps putting rules before svcproxy's, which may stop services: %s; they are passed again at %s",
			rulesText(p.ahead), p.until.Format(time.TimeOnly))
	case len(p.aheadOfUser) > 0:
		return fmt.Sprintf("rules before the jump to %s, which svcproxy's stay behind, may stop services: %s", xtables.UserChain, rulesText(p.aheadOfUser))
	case len(p.passed) > 0 && now.Sub(p.last) < movesShown:
		return fmt.Sprintf("svcproxy's rules were moved before %s; rules that are to stop clients of services belong into %s", rulesText(p.passed), blockIn(id))
	}
	return ""
}

// rulesText quotes rules.
func rulesText(rules []string) string { return "\"" + strings.Join(rules, "\", \"") + "\"" }

// byName orders jumps by table and chain.
func byName(a, b object) int { return strings.Compare(a.table+" "+a.name, b.table+" "+b.name) }

// movedAhead notes and logs moves that were written.
func (o *order) movedAhead(passed map[object][]string, tool string, log *slog.Logger) {
	for _, id := range slices.SortedFunc(maps.Keys(passed), byName) {
		rules := passed[id]
		pause := o.moved(id, rules)
		log.Warn("moved the jumps to our chains before foreign rules that may stop services",
			"tool", tool, "table", id.table, "chain", id.name, "rules", rulesText(rules), "block_in", blockIn(id))
		if pause > 0 {
			log.Warn("another program keeps inserting rules before our jumps; leaving them there for now",
				"tool", tool, "table", id.table, "chain", id.name, "retry", pause)
		}
	}
}
