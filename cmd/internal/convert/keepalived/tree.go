package keepalived

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A node is a statement of a configuration: words and, where braces follow them, what is in these.
type node struct {
	at reader.Position
	reader.Words
	block bool
	sub   []*node
	index map[string]*node // what value looks up
}

// key returns the first word.
func (n *node) key() string { return n.Words[0] }

// last returns the last statement of a block with that key; nil: there is none.
func (n *node) last(key string) *node {
	for _, s := range slices.Backward(n.sub) {
		if s.key() == key {
			return s
		}
	}
	return nil
}

// value returns the last statement of a block with that key and a value; nil: there is none.
func (n *node) value(key string) *node {
	if n.index == nil {
		n.index = map[string]*node{}
		for _, s := range n.sub {
			if s.Arg(1) != "" {
				n.index[s.key()] = s
			}
		}
	}
	return n.index[key]
}

// size returns how many statements a block has, with those of the blocks in it.
func (n *node) size() int {
	count := 1
	for _, s := range n.sub {
		count += s.size()
	}
	return count
}

// maxNodes bounds the statements of a configuration.
const maxNodes = 1_000_000

// A treeBuilder puts statements into the blocks that they are in.
type treeBuilder struct {
	open  []*node           // from the whole text inwards
	count int               // of statements
	take  func(*node) error // takes each statement that is in no block, when it has ended
}

// line takes a line: statements end with it, at an opening brace, or before a closing one.
func (b *treeBuilder) line(at reader.Position, line string) error {
	words, err := reader.OfKeepalived.Split(line)
	if strings.Contains(line, "misc_path") { // which may be in single quotes
		if script, scriptErr := reader.OfScripts.Split(line); scriptErr == nil {
			words, err = script, nil
		}
	}
	if err != nil {
		return reader.ErrorAt(at, "%s", err)
	}
	var n *node
	for _, w := range words {
		switch {
		case w == "{":
			if n == nil {
				n = b.lastOfBlock() // the brace is on a line of its own
			}
			if n == nil {
				return reader.ErrorAt(at, "a block has no name")
			}
			if len(b.open) > reader.MaxDepth {
				return reader.ErrorAt(at, "blocks are nested more than %d deep", reader.MaxDepth)
			}
			n.block = true
			b.open, n = append(b.open, n), nil
		case w == "}":
			if len(b.open) == 1 {
				return reader.ErrorAt(at, "a brace closes no block")
			}
			if b.open, n = b.open[:len(b.open)-1], nil; len(b.open) == 1 {
				if err := b.flush(); err != nil {
					return err
				}
			}
		case n == nil:
			if b.count++; b.count > maxNodes {
				return reader.ErrorAt(at, "there are more than %d statements", maxNodes)
			}
			n = &node{at: at, Words: []string{w}}
			in := b.open[len(b.open)-1]
			if err := in.misplaced(n); err != nil {
				return err
			}
			in.sub = append(in.sub, n)
		default:
			n.Words = append(n.Words, w)
		}
	}
	return nil
}

// inNoBlock are statements of the top level.
var inNoBlock = []string{"virtual_server", "virtual_server_group", "vrrp_instance", "vrrp_sync_group", "vrrp_script", "global_defs"}

// misplaced returns an error for a statement that is in the wrong block because a brace is missing before it.
func (in *node) misplaced(n *node) error {
	key := n.key()
	switch root := in.key() == ""; {
	case !root && (slices.Contains(inNoBlock, key) || key == "real_server" && in.key() != "virtual_server"):
		return reader.ErrorAt(n.at, "%s is in the block %s of line %d: a brace that ends it is missing before", key, source.Excerpt(in.key()), in.at.Line)
	case root && key == "real_server":
		return reader.ErrorAt(n.at, "real_server is in no virtual_server: a brace that begins it is missing before, or one ends it too early")
	}
	return nil
}

// lastOfBlock returns the last statement, if it can have a block.
func (b *treeBuilder) lastOfBlock() *node {
	in := b.open[len(b.open)-1]
	if len(in.sub) == 0 || in.sub[len(in.sub)-1].block {
		return nil
	}
	return in.sub[len(in.sub)-1]
}

// flush processes the complete top-level statements and drops them, to save memory.
func (b *treeBuilder) flush() error {
	root := b.open[0]
	for _, n := range root.sub {
		if err := b.take(n); err != nil {
			return err
		}
	}
	root.sub = root.sub[:0]
	return nil
}

// readTree reads a configuration, statement by statement.
func readTree(in reader.Input, r *reader.Result, take func(*node) error) error {
	root := &node{at: reader.Position{File: in.Name}, Words: []string{""}, block: true}
	b := &treeBuilder{open: []*node{root}, take: take}
	p := &lineReader{Result: r, id: in.ID, params: map[string]string{"_HASH": "#", "_BANG": "!"}, emit: b.line}
	if err := p.text(in.Name, in.Data, 0); err != nil {
		return err
	}
	if len(b.open) > 1 {
		open := b.open[len(b.open)-1]
		return reader.ErrorAt(open.at, "the block %s has no end", source.Excerpt(open.key()))
	}
	return b.flush()
}
