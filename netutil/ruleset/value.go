package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A value is bytes, some bits of which may not be known, and what they are in words.
type value struct {
	data, known []byte

	name    string
	mask    []byte
	swapped bool // numbers are in the order of the network, to be compared by size
}

// registerBytes is how many bytes the registers of nf_tables have.
const registerBytes = 16 * 4

func unknown(n int) value { return value{data: make([]byte, n), known: make([]byte, n)} }

func known(b []byte) value { return value{data: b, known: bytes.Repeat([]byte{0xff}, len(b))} }

func number(n uint32, isKnown bool) value {
	if !isKnown {
		return unknown(4)
	}
	return known(binary.NativeEndian.AppendUint32(nil, n))
}

func interfaceName(name string, none bool) value {
	if name == "" && !none {
		return unknown(unix.IFNAMSIZ)
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return known(b)
}

func (v value) named(name string) value {
	v.name = name
	return v
}

// slice is part of v; what lies outside is not known.
func (v value) slice(from, n int) value {
	out := unknown(min(n, registerBytes))
	if from < len(v.data) {
		copy(out.data, v.data[from:])
		copy(out.known, v.known[from:])
	}
	return out
}

func (v value) complete() bool { return bytes.Count(v.known, []byte{0xff}) == len(v.known) }

// compare compares v with a value of the same length.
func (v value) compare(op uint32, b []byte) Match {
	c := bytes.Compare(v.data, b)
	switch {
	case op == unix.NFT_CMP_EQ:
		return v.equals(b)
	case op == unix.NFT_CMP_NEQ:
		return v.equals(b).not()
	case !v.complete():
		return Maybe
	case c == 0:
		return matchIf(op == unix.NFT_CMP_LTE || op == unix.NFT_CMP_GTE)
	}
	return matchIf((c < 0) == (op == unix.NFT_CMP_LT || op == unix.NFT_CMP_LTE))
}

// equals compares what is known of v.
func (v value) equals(b []byte) Match {
	m := Yes
	for i := range min(len(b), len(v.data)) {
		if (v.data[i]^b[i])&v.known[i] != 0 {
			return No
		}
		if v.known[i] != 0xff {
			m = Maybe
		}
	}
	return m
}

func (v value) text() string { return cmp.Or(v.name, "?") }

// flags are the names of bits of a connection's state and status, <linux/netfilter/nf_conntrack_common.h>.
var flags = map[string][]string{
	"ct state":  {"invalid", "established", "related", "new", "", "", "untracked"},
	"ct status": {"expected", "seen-reply", "assured", "confirmed", "snat", "dnat"},
}

// constant prints what a rule compares v with.
func (v value) constant(b []byte) string {
	if v.swapped {
		b = slices.Clone(b)
		slices.Reverse(b)
	}
	switch family, part, _ := strings.Cut(v.name, " "); {
	case part == "saddr" || part == "daddr":
		return address(b, map[string]int{"ip": 4, "ip6": 16}[family])
	case part == "sport" || part == "dport":
		return constant(b[:min(len(b), 2)]) // nft may load both at once
	case (part == "l4proto" || part == "protocol" && family != "meta") && len(b) == 1:
		return cmp.Or(map[byte]string{1: "icmp", 6: "tcp", 17: "udp", 132: "sctp"}[b[0]], strconv.Itoa(int(b[0])))
	case part == "nfproto":
		return map[string]string{"\x02": "ipv4", "\x0a": "ipv6"}[string(b)]
	case family == "fib" && bytes.Equal(b, number(unix.RTN_LOCAL, true).data):
		return "local"
	case strings.HasSuffix(part, "name"):
		return strconv.Quote(string(bytes.TrimRight(b, "\x00")))
	case flags[v.name] != nil && len(b) == 4:
		var set []string
		for i, name := range flags[v.name] {
			if binary.NativeEndian.Uint32(b)&(1<<i) != 0 {
				set = append(set, name)
			}
		}
		return strings.Join(set, ",")
	case part != "" && len(b) == 4:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("0x%x", b)
}

var operators = map[uint32]string{unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ", unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= "}

// compared says what v is compared with: a value, or two with what is in between. A comparison of some
// flags with 0 asks whether any of them is set.
func (v value) compared(op uint32, data ...[]byte) string {
	text, mask := v.text()+" "+operators[op]+v.constant(data[0]), fmt.Sprintf("0x%x", v.mask)
	switch ones, bits := net.IPMask(v.mask).Size(); {
	case len(data) > 1:
		return text + "-" + v.constant(data[1])
	case len(v.mask) == 0:
		return text
	case flags[v.name] != nil && op <= unix.NFT_CMP_NEQ && bytes.Count(data[0], []byte{0}) == len(data[0]):
		return v.name + " " + operators[1-op] + v.constant(v.mask)
	case bits > 0:
		mask = strconv.Itoa(ones)
	}
	return text + "/" + mask
}

// address prints an address of a size, or the beginning of one as a prefix.
func address(b []byte, size int) string {
	full := make([]byte, size)
	copy(full, b)
	a, _ := netip.AddrFromSlice(full)
	if len(b) < size {
		return netip.PrefixFrom(a, len(b)*8).String()
	}
	return a.String()
}

// constant prints what a rule has as one: an address, a port or a number.
func constant(b []byte) string {
	switch len(b) {
	case 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case 4, 16:
		return address(b, len(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// quoted makes a name of another program safe to print.
func quoted(name string) string {
	q := strconv.Quote(name)
	return q[1 : len(q)-1]
}

// clip cuts the text of a rule where it is longer than maxText bytes.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "..."
	}
	return s
}

const maxText = 240

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
		isEnd: nlmsg.Uint32(nlmsg.Find(attrs, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
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
		} else {
			set.elements, set.keyLen = append(set.elements, e), len(e.key)
		}
	}
	if !ranges {
		return set
	}
	first := map[bool]int{true: -1}
	slices.SortFunc(set.elements, func(a, b *element) int {
		return cmp.Or(bytes.Compare(a.key, b.key), first[a.isEnd]-first[b.isEnd])
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
