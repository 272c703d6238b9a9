package layout

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// leafSize is the most frontends in a chain that does not branch.
const leafSize = 8

// maxDepth is the most levels of chains in a tree. nf_tables allows 16
// (NFT_JUMP_STACK_SIZE, <net/netfilter/nf_tables.h>): PREROUTING, these, the one that
// separates local sources, and four for a pool.
const maxDepth = 10

// A tree finds the rules of a packet's frontend in few steps, however many frontends
// there are. It is a prefix tree over the hexadecimal digits of a frontend's address,
// protocol and port. A node holds the frontends that begin with a prefix: if they are
// few it is a chain of their rules, else a chain that branches by the first digit in
// which they differ. So a chain depends only on the frontends in its prefix, and its
// name only on the prefix.
type tree struct {
	root    string // name of the chain of the root
	addrLen int    // bytes of a key that are the address; 0 for node ports
	entries []entry

	// flat: some chains would be deeper than maxDepth, so those at that depth do not
	// branch. Then one change may affect chains elsewhere.
	flat bool
}

type entry struct {
	key key
	f   *policy.Frontend
}

// A key is an address, if the tree has them, a protocol and a port, as sortable bytes.
type key [16 + 3]byte

// digitProtocols are the protocols by their bytes in a key, which share their high digit.
var digitProtocols = [...]source.Protocol{source.TCP, source.UDP, source.SCTP}

func (t *tree) key(f *policy.Frontend) (k key) {
	if t.addrLen > 0 {
		copy(k[:], f.Key.Addr.AsSlice())
	}
	k[t.addrLen] = byte(slices.Index(digitProtocols[:], f.Key.Protocol))
	k[t.addrLen+1], k[t.addrLen+2] = byte(f.Key.Port>>8), byte(f.Key.Port)
	return k
}

func (k *key) digit(i int) byte {
	if i%2 == 0 {
		return k[i/2] >> 4
	}
	return k[i/2] & 15
}

// common returns the number of leading digits that two different keys share.
func common(a, b *key) int {
	i := 0
	for a.digit(i) == b.digit(i) {
		i++
	}
	return i
}

func compareKeys(e entry, k key) int { return bytes.Compare(e.key[:], k[:]) }

// find returns the frontend at k, or nil.
func (t *tree) find(k key) *policy.Frontend {
	if i, ok := slices.BinarySearchFunc(t.entries, k, compareKeys); ok {
		return t.entries[i].f
	}
	return nil
}

// put sets the frontend at k; nil removes it.
func (t *tree) put(k key, f *policy.Frontend) {
	i, ok := slices.BinarySearchFunc(t.entries, k, compareKeys)
	switch {
	case ok && f != nil:
		t.entries[i].f = f
	case ok:
		t.entries = slices.Delete(t.entries, i, i+1)
	case f != nil:
		t.entries = slices.Insert(t.entries, i, entry{k, f})
	}
}

// reset replaces all entries.
func (t *tree) reset(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key[:], b.key[:]) })
	t.entries = entries
	t.updateFlat()
}

// updateFlat finds out whether the tree must be flat.
func (t *tree) updateFlat() {
	t.flat = false
	t.flat = t.height(t.top()) > maxDepth
}

// A node is the entries from lo up to hi, excluding hi: all that share their first digits.
type node struct {
	lo, hi, digits int
	depth          int // of its chain; 1 for the root
}

func (t *tree) top() node { return node{0, len(t.entries), 0, 1} }

// isChain reports whether n has a chain of its own. The rules of a single frontend are in its parent's.
func (n node) isChain() bool { return n.depth == 1 || n.hi-n.lo > 1 }

func (t *tree) isLeaf(n node) bool {
	return n.hi-n.lo <= leafSize || t.flat && n.depth == maxDepth
}

// children returns the nodes that n branches to; none for a leaf.
func (t *tree) children(n node) []node {
	if t.isLeaf(n) {
		return nil
	}
	in := t.entries[n.lo:n.hi]
	at := common(&in[0].key, &in[len(in)-1].key)
	var nodes []node
	for i := 0; i < len(in); {
		digit := in[i].key.digit(at)
		end := i + sort.Search(len(in)-i, func(j int) bool { return in[i+j].key.digit(at) > digit })
		nodes = append(nodes, node{n.lo + i, n.lo + end, at + 1, n.depth + 1})
		i = end
	}
	return nodes
}

// height returns the depth of the deepest chain in n.
func (t *tree) height(n node) int {
	h := n.depth
	for _, c := range t.children(n) {
		if c.isChain() {
			h = max(h, t.height(c))
		}
	}
	return h
}

// walk visits n and all nodes below it that are chains.
func (t *tree) walk(n node, visit func(node)) {
	visit(n)
	for _, c := range t.children(n) {
		if c.isChain() {
			t.walk(c, visit)
		}
	}
}

// collectPath adds to nodes, by the names of their chains, those that hold k and their
// children. Adding or removing k affects no other chain, as long as the tree is not
// flat; but a new chain may get children of others.
func (t *tree) collectPath(k key, nodes map[string]node) {
	n := t.top()
	nodes[t.name(n)] = n
	for n.depth > 0 {
		next := node{}
		for _, c := range t.collectChildren(n, nodes) {
			if first := t.entries[c.lo].key; first == k || common(&first, &k) >= c.digits {
				next = c
			}
		}
		n = next
	}
}

// collectChildren adds the children of n that are chains to nodes, and returns them.
func (t *tree) collectChildren(n node, nodes map[string]node) []node {
	chains := slices.DeleteFunc(t.children(n), func(c node) bool { return !c.isChain() })
	for _, c := range chains {
		nodes[t.name(c)] = c
	}
	return chains
}

// name returns the name of a node's chain: its prefix, if that fits.
func (t *tree) name(n node) string {
	if n.depth == 1 {
		return t.root
	}
	k := &t.entries[n.lo].key
	if n.digits <= 2*t.addrLen {
		return shorten(Prefix + prefixText(t.prefix(k, n.digits)))
	}
	name := Prefix + "NP"
	if t.addrLen > 0 {
		name = Prefix + addrText(t.prefix(k, 2*t.addrLen).Addr())
	}
	name += ":" + digitProtocols[k[t.addrLen]].String()
	if lo, hi := t.ports(k, n.digits); hi-lo < 0xffff {
		name += fmt.Sprintf(":%d-%d", lo, hi)
	}
	return shorten(name)
}

// shorten returns a name that fits the kernel's limit.
func shorten(name string) string {
	if len(name) <= maxChain {
		return name
	}
	return hashed(Prefix+"TREE-", name)
}

// prefix returns the addresses that begin with the first digits of k.
func (t *tree) prefix(k *key, digits int) netip.Prefix {
	a, _ := netip.AddrFromSlice(k[:t.addrLen])
	return netip.PrefixFrom(a, 4*digits).Masked()
}

// ports returns the first and last port that begin with the first digits of k.
func (t *tree) ports(k *key, digits int) (lo, hi uint16) {
	given := max(0, digits-2*t.addrLen-2) // of the four digits of the port
	rest := uint16(0xffff) >> (4 * given)
	port := uint16(k[t.addrLen+1])<<8 | uint16(k[t.addrLen+2])
	return port &^ rest, port | rest
}

// match returns the match for the packets of a node below the root.
func (t *tree) match(n node, whole string) string {
	k := &t.entries[n.lo].key
	if n.digits <= 2*t.addrLen {
		return to(t.prefix(k, n.digits))
	}
	words := ""
	if t.addrLen > 0 {
		words = "-d " + addrText(t.prefix(k, 2*t.addrLen).Addr()) + whole + " "
	}
	proto := digitProtocols[k[t.addrLen]].String()
	words += "-p " + proto
	if lo, hi := t.ports(k, n.digits); hi-lo < 0xffff {
		words += " -m " + proto + " --dport " + strconv.Itoa(int(lo)) + ":" + strconv.Itoa(int(hi))
	}
	return words
}
