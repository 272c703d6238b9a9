package ruleset

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// An nftSet is a set or map with its elements.
type nftSet struct {
	keyLen   int
	ranges   bool // of single keys: elements are where ranges begin and end
	elements []nftables.SetElement
	other    *nftables.SetElement // for keys that no element has; nil: there is none
}

// newSet returns a set with elements as the kernel lists them.
func newSet(s *nftables.Set, elements []nftables.SetElement) *nftSet {
	set := &nftSet{ranges: s.Interval && !s.Concatenation}
	for _, e := range elements {
		if len(e.Key) == 0 { // "*"
			set.other = &e
			continue
		}
		set.elements = append(set.elements, e)
	}
	set.keyLen = keyLen(s, set.elements)
	if set.ranges {
		slices.SortStableFunc(set.elements, func(a, b nftables.SetElement) int {
			return cmp.Or(bytes.Compare(a.Key, b.Key), rank(a)-rank(b))
		})
	}
	return set
}

func keyLen(s *nftables.Set, elements []nftables.SetElement) int {
	if len(elements) > 0 {
		return len(elements[0].Key)
	}
	return int(s.KeyType.Bytes)
}

// rank puts the end of a range before the beginning of the next.
func rank(e nftables.SetElement) int {
	if e.IntervalEnd {
		return 0
	}
	return 1
}

// find returns whether a key is in the set, and the element.
func (s *nftSet) find(key value) (Match, *nftables.SetElement) {
	m, e := s.findKey(key)
	if m == No && s.other != nil {
		return Yes, s.other
	}
	return m, e
}

func (s *nftSet) findKey(key value) (Match, *nftables.SetElement) {
	if s.ranges {
		return s.findRange(key)
	}
	best, at := No, (*nftables.SetElement)(nil)
	for i := range s.elements {
		e := &s.elements[i]
		m := contains(e, key)
		if m > best {
			best, at = m, e
		}
		if m == Yes {
			break
		}
	}
	return best, at
}

// candidates returns the elements that may have a key, of which not all is known.
func (s *nftSet) candidates(key value) (list []*nftables.SetElement) {
	for i := range s.elements {
		e := &s.elements[i]
		if s.ranges && !e.IntervalEnd || !s.ranges && contains(e, key) != No {
			list = append(list, e)
		}
	}
	if s.other != nil {
		list = append(list, s.other)
	}
	return list
}

// oneOf is a verdict of which nobody knows from which of these elements it is: one that
// stands in the way before one that lets the packet pass, and not one chain of several.
func oneOf(list []*nftables.SetElement) (one Verdict) {
	ends := false
	for _, e := range list {
		v := elementVerdict(e)
		switch {
		case v.passes():
			ends = ends || v.Kind != Continue
		case one.Kind == Continue:
			one = v
		case v != one && (v.leads() || one.leads()):
			return Verdict{Kind: Unfollowed}
		}
	}
	switch {
	case ends && one.Kind == Continue:
		return Verdict{Kind: Accept}
	case ends && one.leads():
		return Verdict{Kind: Unfollowed} // it may not go on behind the chain
	}
	return one
}

// contains reports whether an element has a key, or the ranges of its fields, which
// have lengths of four bytes or a multiple, of an IPv6 address 16.
func contains(e *nftables.SetElement, key value) Match {
	if len(e.KeyEnd) == 0 || bytes.Equal(e.Key, e.KeyEnd) {
		return key.equals(e.Key)
	}
	if !key.complete() || len(e.KeyEnd) != len(e.Key) || len(key.data) < len(e.Key) {
		return Maybe
	}
	single := true // so far all parts of the element are single values
	for at := 0; at < len(e.Key); at += 4 {
		end := min(at+4, len(e.Key))
		lo, hi, k := e.Key[at:end], e.KeyEnd[at:end], key.data[at:end]
		if bytes.Compare(k, lo) < 0 || bytes.Compare(k, hi) > 0 {
			if len(e.Key) > 16 && !single {
				return Maybe // it may be a later part of a field that is within its range
			}
			return No
		}
		single = single && bytes.Equal(lo, hi)
	}
	return Yes
}

// findRange finds a key between the beginning and the end of a range.
func (s *nftSet) findRange(key value) (Match, *nftables.SetElement) {
	if len(s.elements) == 0 {
		return No, nil
	}
	if !key.complete() {
		return Maybe, &s.elements[0]
	}
	for i := len(s.elements) - 1; i >= 0; i-- {
		e := &s.elements[i]
		if bytes.Compare(e.Key, key.data) > 0 {
			continue
		}
		return matchIf(!e.IntervalEnd), e
	}
	return No, nil
}

func addrText(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return "another address"
	}
	return a.String()
}

func elementVerdict(e *nftables.SetElement) Verdict { return verdictOf(verdictIn(e.Val)) }

// verdictIn decodes the data of an element of a verdict map, which the library leaves as it
// is: attributes with the code and, where packets jump, the chain.
func verdictIn(data []byte) *expr.Verdict {
	v := &expr.Verdict{Kind: expr.VerdictContinue, Chain: nlmsg.String(nlmsg.Find(data, unix.NFTA_VERDICT_CHAIN))}
	if code := nlmsg.Find(data, unix.NFTA_VERDICT_CODE); code != nil {
		v.Kind = expr.VerdictKind(int32(nlmsg.Uint32(code)))
	}
	return v
}
