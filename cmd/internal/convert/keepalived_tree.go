package convert

import (
	"errors"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// words are those of a line or a statement.
type words []string

// arg returns a word by its number; empty: there is none.
func (w words) arg(i int) string {
	if i < len(w) {
		return w[i]
	}
	return ""
}

// A node is a statement of a configuration: words and, where braces follow them, what is in these.
type node struct {
	at position
	words
	block bool
	sub   []*node
	index map[string]*node // what value looks up
}

// key returns the first word.
func (n *node) key() string { return n.words[0] }

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
			if s.arg(1) != "" {
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
	open  []*node // from the whole text inwards
	count int     // of statements
}

// line takes a line: statements end with it, at an opening brace, or before a closing one.
func (b *treeBuilder) line(at position, line string) error {
	words, err := splitWords(line)
	if err != nil {
		return errorAt(at, "%s", err)
	}
	var n *node
	for _, w := range words {
		switch {
		case w == "{":
			if n == nil {
				n = b.lastOfBlock() // the brace is on a line of its own
			}
			if n == nil {
				return errorAt(at, "a block has no name")
			}
			if len(b.open) > maxDepth {
				return errorAt(at, "blocks are nested more than %d deep", maxDepth)
			}
			n.block = true
			b.open, n = append(b.open, n), nil
		case w == "}":
			if len(b.open) == 1 {
				return errorAt(at, "a brace closes no block")
			}
			b.open, n = b.open[:len(b.open)-1], nil
		case n == nil:
			if b.count++; b.count > maxNodes {
				return errorAt(at, "there are more than %d statements", maxNodes)
			}
			n = &node{at: at, words: []string{w}}
			in := b.open[len(b.open)-1]
			in.sub = append(in.sub, n)
		default:
			n.words = append(n.words, w)
		}
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

var errQuote = errors.New("a quote has no end")

// A splitter takes up the words of a line.
type splitter struct {
	words []string
	word  strings.Builder
	begun bool // the word; one in quotes may be empty
}

// add adds to the word.
func (s *splitter) add(text string) {
	s.word.WriteString(text)
	s.begun = true
}

// end ends the word, if one has begun.
func (s *splitter) end() {
	if s.begun {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.begun = false
}

// splitWords splits a line at blanks. What is in double quotes is one word, with what a backslash
// is before of taken as it is. Braces are words, except in quotes.
func splitWords(line string) ([]string, error) {
	var s splitter
	quoted := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			if line[i] != '"' && line[i] != '\\' {
				s.add(`\`)
			}
			s.add(line[i : i+1])
		case c == '"':
			quoted, s.begun = !quoted, true
		case !quoted && (c == ' ' || c == '\t'):
			s.end()
		case !quoted && (c == '{' || c == '}') && (i == 0 || line[i-1] != '$') && !strings.Contains(s.word.String(), "${"):
			s.end()
			s.words = append(s.words, string(c))
		default:
			s.add(line[i : i+1])
		}
	}
	if quoted {
		return nil, errQuote
	}
	s.end()
	return s.words, nil
}

// readTree reads a configuration.
func readTree(in Input, r *Result) (*node, error) {
	root := &node{at: position{in.Name, 0}, words: []string{""}, block: true}
	b := &treeBuilder{open: []*node{root}}
	p := &lineReader{Result: r, id: in.ID, params: map[string]string{"_HASH": "#", "_BANG": "!"}, emit: b.line, size: len(in.Data)}
	if err := p.text(in.Name, in.Data, 0); err != nil {
		return nil, err
	}
	if len(b.open) > 1 {
		open := b.open[len(b.open)-1]
		return nil, errorAt(open.at, "the block %s has no end", source.Excerpt(open.key()))
	}
	return root, nil
}
