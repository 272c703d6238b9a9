package keepalived

import (
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A node is a statement of a configuration: words and, where braces follow them, what is in these.
type node struct {
	reader.Line
	block bool
	sub   []*node
	index map[string]*node // what value looks up
}

// key returns the first word.
func (n *node) key() string { return n.Words[0] }

// last returns the last statement of a block with one of some keys, which is the one that counts; nil: there is none.
func (n *node) last(keys ...string) *node {
	for _, s := range slices.Backward(n.sub) {
		if slices.Contains(keys, s.key()) {
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

// inNoBlock are statements of the whole text.
var inNoBlock = reader.WordSet("virtual_server virtual_server_group vrrp_instance vrrp_sync_group vrrp_script global_defs")

// expect ends the reading for a statement that is in the wrong block because a brace is missing before it.
func (n *node) expect(s *node) {
	switch key := s.key(); {
	case n.key() == "" && key == "real_server":
		reader.Fail(s.At, "real_server is in no virtual_server: a brace that begins it is missing before, or one ends it too early")
	case n.key() != "" && (inNoBlock[key] || key == "real_server" && n.key() != "virtual_server"):
		reader.Fail(s.At, "%s is in the block %s of line %d: a brace that ends it is missing before", key, source.Excerpt(n.key()), n.At.Line)
	}
}
