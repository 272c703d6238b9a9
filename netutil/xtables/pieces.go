package xtables

import "bytes"

// Pieces returns scripts that do together what s does, each with some n chains, to
// be run one after the other. A chain is filled after those that it leads to, so that
// a packet never meets one that is not ready; built-in chains lead to ours only
// then, and chains are removed in the end. prefix begins the names of ours.
func (s *Script) Pieces(n int, prefix string) []*Script {
	var pieces []*Script
	for _, sec := range s.tables {
		c := cutter{table: sec.name, size: n}
		for _, f := range sec.leavesFirst(prefix) {
			c.next().Set(sec.name, f.name, sec.rules.Bytes()[f.from:f.to])
		}
		for _, chain := range sec.removed { // they may lead to each other
			c.next().Set(sec.name, chain, nil)
		}
		c.done()
		c.links(sec)
		for _, chain := range sec.removed {
			c.next().Remove(sec.name, chain)
		}
		c.done()
		pieces = append(pieces, c.pieces...)
	}
	return pieces
}

// A cutter collects the pieces of one table.
type cutter struct {
	table   string
	size, n int
	piece   *Script // nil: none is begun
	pieces  []*Script
}

// next returns the script for one more chain.
func (c *cutter) next() *Script {
	if c.n == c.size {
		c.done()
	}
	if c.piece == nil {
		c.piece = &Script{}
	}
	c.n++
	return c.piece
}

func (c *cutter) done() {
	if c.piece != nil {
		c.pieces = append(c.pieces, c.piece)
	}
	c.piece, c.n = nil, 0
}

// links adds the piece that changes built-in chains.
func (c *cutter) links(sec *section) {
	if sec.unlink.Len()+sec.link.Len() == 0 {
		return
	}
	piece := &Script{}
	to := piece.section(c.table)
	to.unlink.Write(sec.unlink.Bytes())
	to.link.Write(sec.link.Bytes())
	c.pieces = append(c.pieces, piece)
}

// leavesFirst returns the chains that are filled, each after those that it leads to.
func (sec *section) leavesFirst(prefix string) []filled {
	byName := make(map[string]filled, len(sec.sets))
	for _, f := range sec.sets {
		byName[f.name] = f
	}
	var order []filled
	done := make(map[string]bool, len(sec.sets))
	var visit func(f filled)
	visit = func(f filled) {
		if done[f.name] {
			return
		}
		done[f.name] = true
		for line := range bytes.Lines(sec.rules.Bytes()[f.from:f.to]) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if !target(line, []byte(prefix)) {
				continue
			}
			if to, ok := byName[string(line[bytes.LastIndexByte(line, ' ')+1:])]; ok {
				visit(to)
			}
		}
		order = append(order, f)
	}
	for _, f := range sec.sets {
		visit(f)
	}
	return order
}
