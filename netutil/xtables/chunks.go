package xtables

import "bytes"

// Chunks splits s into scripts of about n chains each, to be run in order. A chain is
// filled after those that it jumps to, so that a packet never meets an incomplete one;
// then built-in chains get their jumps to ours, and chains are removed last. prefix
// begins the names of ours.
func (s *Script) Chunks(n int, prefix string) []*Script {
	var chunks []*Script
	for _, sec := range s.tables {
		c := chunker{table: sec.name, size: n}
		for _, f := range sec.leavesFirst(prefix) {
			c.next().Set(sec.name, f.name, sec.rules.Bytes()[f.from:f.to])
		}
		for _, chain := range sec.removed { // they may jump to each other
			c.next().Set(sec.name, chain, nil)
		}
		c.done()
		c.addJumps(sec)
		for _, chain := range sec.removed {
			c.next().Remove(sec.name, chain)
		}
		c.done()
		chunks = append(chunks, c.chunks...)
	}
	return chunks
}

// A chunker collects the chunks of one table.
type chunker struct {
	table   string
	size, n int
	chunk   *Script // nil: not begun
	chunks  []*Script
}

// next returns the script for one more chain.
func (c *chunker) next() *Script {
	if c.n == c.size {
		c.done()
	}
	if c.chunk == nil {
		c.chunk = &Script{}
	}
	c.n++
	return c.chunk
}

func (c *chunker) done() {
	if c.chunk != nil {
		c.chunks = append(c.chunks, c.chunk)
	}
	c.chunk, c.n = nil, 0
}

// addJumps adds the chunk that changes built-in chains.
func (c *chunker) addJumps(sec *section) {
	if sec.deleteJumps.Len()+sec.insertJumps.Len() == 0 {
		return
	}
	chunk := &Script{}
	to := chunk.section(c.table)
	to.deleteJumps.Write(sec.deleteJumps.Bytes())
	to.insertJumps.Write(sec.insertJumps.Bytes())
	c.chunks = append(c.chunks, chunk)
}

// leavesFirst returns the filled chains, each after those that it jumps to.
func (sec *section) leavesFirst(prefix string) []filledChain {
	byName := make(map[string]filledChain, len(sec.filled))
	for _, f := range sec.filled {
		byName[f.name] = f
	}
	var order []filledChain
	done := make(map[string]bool, len(sec.filled))
	var visit func(f filledChain)
	visit = func(f filledChain) {
		if done[f.name] {
			return
		}
		done[f.name] = true
		for line := range bytes.Lines(sec.rules.Bytes()[f.from:f.to]) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if !jumpsTo(line, []byte(prefix)) {
				continue
			}
			if to, ok := byName[string(line[bytes.LastIndexByte(line, ' ')+1:])]; ok {
				visit(to)
			}
		}
		order = append(order, f)
	}
	for _, f := range sec.filled {
		visit(f)
	}
	return order
}
