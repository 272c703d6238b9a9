package xtables

import "bytes"

// Chunks splits s into scripts of about n chains each, to be run in order. A chain is
// filled after those that it jumps to, so that a packet never meets an incomplete one;
// then built-in chains get their jumps to ours, and chains are removed last. prefix
// begins the names of ours.
func (s *Script) Chunks(n int, prefix string) (chunks []*Script) {
	for _, sec := range s.tables {
		room := 0
		next := func() *Script { // for one more chain
			if room == 0 {
				chunks, room = append(chunks, &Script{}), n
			}
			room--
			return chunks[len(chunks)-1]
		}
		for _, f := range sec.leavesFirst(prefix) {
			next().Set(sec.name, f.name, sec.rules.Bytes()[f.from:f.to])
		}
		for _, chain := range sec.removed { // they may jump to each other
			next().Set(sec.name, chain, nil)
		}
		room = 0
		if sec.deleteJumps.Len()+sec.insertJumps.Len() > 0 {
			chunk := &Script{}
			to := chunk.section(sec.name)
			to.deleteJumps.Write(sec.deleteJumps.Bytes())
			to.insertJumps.Write(sec.insertJumps.Bytes())
			chunks = append(chunks, chunk)
		}
		for _, chain := range sec.removed {
			next().Remove(sec.name, chain)
		}
	}
	return chunks
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
