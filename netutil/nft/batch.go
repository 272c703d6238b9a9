package nft

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Elements of one set follow one another in a message up to these numbers: the
// list is one attribute, whose length has 16 bits.
const (
	maxElements  = 500
	maxListBytes = attrMax - 512
)

// A Batch is one transaction on one table: all of it happens, or nothing. Its
// methods append what is to be done, in order.
type Batch struct {
	table Table
	buf   []byte
	sets  uint32      // how many were added, to number them
	done  []operation // in order, to say which one failed

	// The message of elements that is being written: where it and its list of them begin in buf, and
	// how many that has; 0: there is none. Its operation is the last.
	start, inner, elements int
}

// An operation is what one message of a Batch does, and to what.
type operation struct {
	typ   uint16
	name  string // empty: of the table
	exprs []byte // of a rule
}

// NewBatch returns an empty transaction.
func NewBatch(t Table) *Batch {
	b := &Batch{table: t}
	b.Reset()
	return b
}

// Reset empties b and keeps its memory.
func (b *Batch) Reset() {
	b.buf = startMessage(b.buf[:0], unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.buf = endMessage(b.buf, 0)
	b.sets, b.done, b.elements = 0, b.done[:0], 0
}

// Empty reports whether the batch has no operation.
func (b *Batch) Empty() bool { return len(b.done) == 0 }

// Len returns the length of b in bytes.
func (b *Batch) Len() int { return len(b.buf) }

// Messages returns how many messages b has, without those that begin and end it.
func (b *Batch) Messages() int { return len(b.done) }

// message appends a message that names the table, as attribute 1 does for every object, and an object, or
// the chain of a rule; none where name is empty.
func (b *Batch) message(typ, flags uint16, name string, fill func([]byte) []byte) {
	b.closeList()
	start := len(b.buf)
	b.done = append(b.done, operation{typ: typ, name: name})
	b.buf = startMessage(b.buf, nftMessage(typ), flags, b.table.Family, 0)
	b.buf = putString(b.buf, unix.NFTA_TABLE_NAME, b.table.Name)
	switch {
	case typ == unix.NFT_MSG_NEWCHAIN, typ == unix.NFT_MSG_DELCHAIN:
		b.buf = putString(b.buf, unix.NFTA_CHAIN_NAME, name)
	case name != "":
		b.buf = putString(b.buf, unix.NFTA_SET_NAME, name) // the same number as that of a rule's chain, and of a flow table
	}
	if fill != nil {
		b.buf = fill(b.buf)
	}
	b.buf = endMessage(b.buf, start)
}

// AddTable adds the table, or wakes a dormant one.
func (b *Batch) AddTable(comment string) { b.addTable(0, 0, comment) }

func (b *Batch) addTable(messageFlags uint16, flags uint32, comment string) {
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|messageFlags, "", func(m []byte) []byte {
		m = putUint32(m, unix.NFTA_TABLE_FLAGS, flags)
		return putBytes(m, tableUserData, appendComment(nil, commentUserData, comment))
	})
}

// EnsureTable adds the table if there is none, and leaves an existing one as it is.
func (b *Batch) EnsureTable() { b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "", nil) }

// DeleteTable removes the table with all that it holds.
func (b *Batch) DeleteTable() { b.message(unix.NFT_MSG_DELTABLE, 0, "", nil) }

// AddChain adds a chain.
func (b *Batch) AddChain(c *Chain) {
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Name, func(m []byte) []byte {
		if h := c.Hook; h != nil {
			start := len(m)
			m = startNest(m, unix.NFTA_CHAIN_HOOK)
			m = putUint32(m, unix.NFTA_HOOK_HOOKNUM, h.Number)
			m = putUint32(m, unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
			m = endNest(m, start)
			m = putUint32(m, unix.NFTA_CHAIN_POLICY, h.Policy)
			m = putString(m, unix.NFTA_CHAIN_TYPE, h.Type)
		}
		if c.Comment != "" {
			m = putBytes(m, chainUserData, appendComment(nil, commentUserData, c.Comment))
		}
		return m
	})
}

// DeleteChain removes a chain, which must be empty and which no rule may jump to.
func (b *Batch) DeleteChain(name string) { b.message(unix.NFT_MSG_DELCHAIN, 0, name, nil) }

// FlushChain removes the rules of a chain; of every chain when name is empty.
func (b *Batch) FlushChain(name string) { b.message(unix.NFT_MSG_DELRULE, 0, name, nil) }

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(chain string, r Rule) {
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, chain, func(m []byte) []byte {
		m = putBytes(m, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.Exprs)
		if r.Comment != "" {
			m = putBytes(m, unix.NFTA_RULE_USERDATA, appendComment(nil, commentUserData, r.Comment))
		}
		return m
	})
	b.done[len(b.done)-1].exprs = r.Exprs
}

// AddSet adds a set or map.
func (b *Batch) AddSet(s *Set) {
	b.sets++
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.Name, func(m []byte) []byte {
		m = putUint32(m, unix.NFTA_SET_ID, b.sets)
		m = putUint32(m, unix.NFTA_SET_FLAGS, s.flags())
		m = putUint32(m, unix.NFTA_SET_KEY_TYPE, s.Key.Number)
		m = putUint32(m, unix.NFTA_SET_KEY_LEN, s.Key.Len)
		if s.Data.Len > 0 {
			m = putUint32(m, unix.NFTA_SET_DATA_TYPE, s.Data.Number)
			m = putUint32(m, unix.NFTA_SET_DATA_LEN, s.Data.Len)
		}
		m = s.appendDesc(m)
		return putBytes(m, unix.NFTA_SET_USERDATA, s.userData())
	})
}

func (s *Set) appendDesc(m []byte) []byte {
	start := len(m)
	m = startNest(m, unix.NFTA_SET_DESC)
	if s.Size > 0 {
		m = putUint32(m, unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	return endNest(m, start)
}

// userData tells nft how to print the set.
func (s *Set) userData() []byte {
	var u []byte
	for _, side := range []struct {
		attr byte
		typ  Type
	}{{setKeyByteOrder, s.Key}, {setDataByteOrder, s.Data}} {
		order := uint32(bigEndian)
		if side.typ == Mark {
			order = hostEndian
		}
		u = append(u, side.attr, 4)
		u = binary.NativeEndian.AppendUint32(u, order)
	}
	return appendComment(u, setComment, s.Comment)
}

// DeleteSet removes a set, which no rule may refer to.
func (b *Batch) DeleteSet(name string) { b.message(unix.NFT_MSG_DELSET, 0, name, nil) }

// AddElement adds an element. An existing one is no error, unless a map has other
// data for it.
func (b *Batch) AddElement(set string, e Element) {
	b.element(unix.NFT_MSG_NEWSETELEM, set, e)
}

// DeleteElement removes an element, which must exist. Its data is ignored.
func (b *Batch) DeleteElement(set string, e Element) {
	b.element(unix.NFT_MSG_DELSETELEM, set, Element{Key: e.Key})
}

func (b *Batch) element(typ uint16, set string, e Element) {
	if n := len(b.done); b.elements == 0 || b.elements == maxElements || b.done[n-1].typ != typ || b.done[n-1].name != set ||
		len(b.buf)-b.inner+e.size() > maxListBytes {
		b.openList(typ, set)
	}
	b.elements++
	start := len(b.buf)
	m := startNest(b.buf, unix.NFTA_LIST_ELEM)
	m = putValue(m, unix.NFTA_SET_ELEM_KEY, e.Key)
	if len(e.Data) > 0 {
		m = putValue(m, unix.NFTA_SET_ELEM_DATA, e.Data)
	}
	m = putMilliseconds(m, unix.NFTA_SET_ELEM_TIMEOUT, e.Timeout)
	m = putMilliseconds(m, unix.NFTA_SET_ELEM_EXPIRATION, e.Expires)
	if e.Comment != "" {
		data := len(m)
		m = binary.NativeEndian.AppendUint16(append(m, 0, 0), unix.NFTA_SET_ELEM_USERDATA)
		m = appendComment(m, commentUserData, e.Comment)
		m = pad(endNest(m, data))
	}
	b.buf = endNest(m, start)
}

func (b *Batch) openList(typ uint16, set string) {
	b.closeList()
	b.start = len(b.buf)
	b.done = append(b.done, operation{typ: typ, name: set})
	var flags uint16
	if typ == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	m := startMessage(b.buf, nftMessage(typ), flags, b.table.Family, 0)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_TABLE, b.table.Name)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_SET, set)
	b.inner = len(m)
	b.buf = startNest(m, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
}

func (b *Batch) closeList() {
	if b.elements > 0 {
		b.buf = endMessage(endNest(b.buf, b.inner), b.start)
		b.elements = 0
	}
}

// seal ends the batch, numbers its messages from first on, and asks for an
// acknowledgement of the last operation.
func (b *Batch) seal(first uint32) (begin, end uint32) {
	b.closeList()
	start := len(b.buf)
	b.buf = startMessage(b.buf, unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.buf = endMessage(b.buf, start)
	seq, last := first, 0
	for at := 0; at < len(b.buf); at += nlmsg.Align(int(binary.NativeEndian.Uint32(b.buf[at:]))) {
		binary.NativeEndian.PutUint32(b.buf[at+8:], seq)
		if at < start {
			last = at
		}
		seq++
	}
	flags := binary.NativeEndian.Uint16(b.buf[last+6:])
	binary.NativeEndian.PutUint16(b.buf[last+6:], flags|unix.NLM_F_ACK)
	return first, seq - 1
}

// verbs say in errors what the messages of a batch do.
var verbs = map[uint16]string{
	unix.NFT_MSG_NEWTABLE: "adding the table", unix.NFT_MSG_DELTABLE: "deleting the table",
	unix.NFT_MSG_NEWCHAIN: "adding chain", unix.NFT_MSG_DELCHAIN: "deleting chain",
	unix.NFT_MSG_NEWRULE: "adding a rule of chain", unix.NFT_MSG_DELRULE: "deleting the rules of chain",
	unix.NFT_MSG_NEWSET: "adding set", unix.NFT_MSG_DELSET: "deleting set",
	unix.NFT_MSG_NEWFLOWTABLE: "adding flow table", unix.NFT_MSG_DELFLOWTABLE: "deleting flow table",
	unix.NFT_MSG_NEWSETELEM: "adding elements to set", unix.NFT_MSG_DELSETELEM: "deleting elements of set",
}

// describe returns what message n of a sealed batch does, and whether that adds a flow table, or a rule that puts
// connections into one. The first message begins the batch, and the last commits it.
func (b *Batch) describe(n int) (text string, flows bool) {
	if n < 1 || n > len(b.done) {
		return "committing", false
	}
	op := b.done[n-1]
	if text = verbs[op.typ]; op.name != "" {
		text += " " + op.name
	}
	addsFlow := func(e []byte) bool { return exprName(e) == flowOffload }
	return text, op.typ == unix.NFT_MSG_NEWFLOWTABLE || slices.ContainsFunc(expressions(op.exprs), addsFlow)
}
