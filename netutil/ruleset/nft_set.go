package ruleset

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// An element is a key of a set, or all from one up to another.
type element struct {
	key, end []byte // end is nil: one key
	data     []byte // of a map; of a verdict map NFTA_DATA_VERDICT
	isEnd    bool   // it is where the range ends that begins at the element before
}

// elemKeyEnd is NFTA_SET_ELEM_KEY_END, <linux/netfilter/nf_tables.h>.
const elemKeyEnd = 10

// decodeElement decodes what the kernel lists: attributes NFTA_SET_ELEM_*.
func decodeElement(attrs []byte) *element {
	value := func(path ...uint16) []byte { return bytes.Clone(nlmsg.Find(attrs, path...)) }
	e := &element{
		key:   value(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
		end:   value(elemKeyEnd, unix.NFTA_DATA_VALUE),
		data:  value(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE),
		isEnd: expression(attrs).number(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
	if e.data == nil {
		e.data = value(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)
	}
	return e
}

// An nftSet is a set or map with its elements.
type nftSet struct {
	keyLen   int
	ranges   bool // of single keys: an end is the first key that is not in the range
	elements []*element
	other    *element // for keys that no element has; nil: there is none
}

// newSet returns a set with elements as the kernel lists them: those of ranges of single keys are where
// one begins or ends.
func newSet(ranges bool, elements []*element) *nftSet {
	set := &nftSet{ranges: ranges}
	for _, e := range elements {
		if len(e.key) == 0 { // "*"
			set.other = e
			continue
		}
		set.elements, set.keyLen = append(set.elements, e), len(e.key)
	}
	if !ranges {
		return set
	}
	slices.SortFunc(set.elements, func(a, b *element) int {
		if c := bytes.Compare(a.key, b.key); c != 0 || a.isEnd == b.isEnd {
			return c
		}
		return map[bool]int{true: -1, false: 1}[a.isEnd]
	})
	end := bytes.Repeat([]byte{0xff}, set.keyLen+1) // after all keys
	for _, e := range slices.Backward(set.elements) {
		e.end, end = end, e.key
	}
	set.elements = slices.DeleteFunc(set.elements, func(e *element) bool { return e.isEnd })
	return set
}

// find returns whether a key is in the set, and the data of its element if that is certain.
func (s *nftSet) find(key value) (Match, []byte) {
	best := No
	for _, e := range s.elements {
		m := s.has(e, key)
		if m == Yes {
			return Yes, e.data
		}
		best = max(best, m)
	}
	if best == No && s.other != nil {
		return Yes, s.other.data
	}
	return best, nil
}

// has reports whether an element has a key, or the ranges of its fields, which
// have lengths of four bytes or a multiple, of an IPv6 address 16.
func (s *nftSet) has(e *element, key value) Match {
	switch {
	case len(e.end) == 0 || bytes.Equal(e.key, e.end):
		return key.equals(e.key)
	case !key.complete() || len(key.data) < len(e.key):
		return Maybe
	case s.ranges:
		return matchIf(bytes.Compare(key.data, e.key) >= 0 && bytes.Compare(key.data, e.end) < 0)
	}
	for at := 0; at < min(len(e.key), len(e.end)); at += 4 {
		to := min(at+4, len(e.key), len(e.end))
		switch part := key.data[at:to]; {
		case bytes.Compare(part, e.key[at:to]) >= 0 && bytes.Compare(part, e.end[at:to]) <= 0:
		case at == 0 || len(e.key) <= 16:
			return No
		default:
			return Maybe // it may be a later part of an address that is within its range
		}
	}
	return Yes
}
