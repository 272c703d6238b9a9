package decode

import "fmt"

// maxFaults bounds what is kept of one file.
const maxFaults = 1000

// MaxDepth is the deepest nesting that is read, counting every key and every
// bracket on the way. Our files need ten; both parsers recurse, and Go ends a
// program whose stack overflows.
const MaxDepth = 32

// A parsed value takes 50 to 100 bytes and a table some 300, so a text of nothing
// but brackets would take hundreds of times its size. In real files, where
// addresses and names have their length, a value has 10 bytes of text or more and
// a table 20 or more; what is allowed is somewhat more than that.
const (
	bytesPerValue = 6
	bytesPerTable = 16
	free          = 1000 // so many values in texts of any size
)

// The most keys that a table has, and that stand at the top of a text. A table of ours whose keys anybody can choose has one
// for each port of a service, in three protocols, and at the top there are a few dozen tables and keys.
const (
	maxKeys = 3 * 65535
	maxTop  = maxFaults
)

// TooDense is the fault of a text that has too many values for its size.
const TooDense = "more keys and brackets than a file of this size can need"

// A textFault is a fault at an offset of the text.
type textFault struct {
	off       int
	msg, hint string
}

// A size is how much there is in a text so far, and where that is too much.
type size struct {
	bytes          int // of it
	values, tables int
	depth          int             // nesting of the value being read
	keys           int             // of this table
	isTop          bool            // the key that is being read begins at the top
	top            map[string]bool // the keys there, as they are written; nil: they are not counted
	over           *textFault      // where and why reading stopped; nil: it did not
}

func (s *size) stopped() bool { return s.over != nil }

// stop notes where and why reading stops, the first time.
func (s *size) stop(at int, msg string) {
	if s.over == nil {
		s.over = &textFault{off: at, msg: msg}
	}
}

// count adds to what there is, and stops where it is too much.
func (s *size) count(at, values, tables int) {
	s.values += values
	s.tables += tables
	if s.values > free+s.bytes/bytesPerValue || s.tables > free+s.bytes/bytesPerTable {
		s.stop(at, TooDense)
	}
}

// wider counts a key of the table that is being read, and stops where it has too many: each is a fault, or memory.
func (s *size) wider(at int, key string) {
	if s.keys++; s.keys > maxKeys {
		s.stop(at, fmt.Sprintf("a table has more than %d keys", maxKeys))
	}
	if s.top == nil || !s.isTop || s.stopped() {
		return
	}
	if s.top[key] = true; len(s.top) > maxTop {
		s.stop(at, fmt.Sprintf("the text has more than %d keys and tables at the top", maxTop))
	}
}

// deeper counts one more level of nesting.
func (s *size) deeper(at int) {
	if s.depth++; s.depth > MaxDepth {
		s.stop(at, fmt.Sprintf("nested deeper than %d levels", MaxDepth))
	}
}
