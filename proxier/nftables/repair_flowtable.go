package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// Warnings implements proxier.Warner.
func (b *Backend) Warnings() []string {
	b.flowtableState.mu.Lock()
	defer b.flowtableState.mu.Unlock()
	if b.flowtableState.warning == "" {
		return nil
	}
	return []string{fmt.Sprintf("[nftables] flowtable: %s (%s)", b.flowtableState.warning, b.Fam)}
}

// decideFlowtable returns the flow table that the table is to have; nil: none. What this kernel
// does not take is tried again by the next repair, and an interface that comes makes a look report
// a difference.
func (b *Backend) decideFlowtable() *nft.Flowtable {
	if len(b.flowtableState.Flowtable) == 0 {
		return nil
	}
	flows, links, warning := b.possibleFlowtable()
	b.flowtableState.decide(links, warning)
	if flows == nil {
		b.flowtableState.warn(warning)
	}
	return flows
}

// possibleFlowtable returns what this kernel takes of the flow table of the settings; nil: nothing.
// links are those configured interfaces that exist, and warning says what is missing.
func (b *Backend) possibleFlowtable() (flows *nft.Flowtable, links map[string]int, warning string) {
	s := &b.flowtableState
	if len(s.Flowtable) == 0 {
		return nil, nil, ""
	}
	links, err := s.present()
	var warnings []string
	if err != nil {
		links = s.last() // they may well be there
		warnings = append(warnings, err.Error())
	} else if missing := s.missing(links); len(missing) > 0 {
		warnings = append(warnings, "there is no interface "+strings.Join(missing, ", "))
	}
	flows, why := b.accepted(slices.Sorted(maps.Keys(links)), s.Offload, b.mirror)
	if why != "" {
		warnings = append(warnings, why)
	}
	if flows == nil {
		warnings = append(warnings, "packets take the usual way")
	}
	return flows, links, strings.Join(warnings, "; ")
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

// tryFlowtable tests whether the kernel takes a flow table and the rule for it.
func (t *tableConn) tryFlowtable(f *nft.Flowtable, m *layout.Mirror) error {
	if t.hasFlowtable(f, m) {
		return nil // it took it already
	}
	c := t.FillsFlows(f)
	batch := nft.NewBatch(t.Scratch())
	batch.AddTable(layout.TableComment)
	batch.AddFlowtable(f)
	batch.AddChain(&c.Chain)
	batch.AddRule(c.Name, c.Rules[0])
	return t.conn.Try(batch)
}

// hasFlowtable reports whether our table has a flow table, maybe of an earlier run.
func (t *tableConn) hasFlowtable(f *nft.Flowtable, m *layout.Mirror) bool {
	if m != nil {
		return f.Equal(m.Flows)
	}
	have, err := t.conn.List(t.Table())
	return err == nil && have != nil && f.Equal(have.Flowtables[f.Name])
}
