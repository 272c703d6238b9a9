package nft

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Listing is the content of a table without elements.
type Listing struct {
	Dormant bool
	Chains  map[string]*Chain
	Rules   map[string][]Rule // by chain
	Sets    map[string]*Set
	Others  int // objects

	Flowtables map[string]*Flowtable
}

// NewListing returns that of an empty table.
func NewListing() *Listing {
	return &Listing{
		Chains: map[string]*Chain{}, Rules: map[string][]Rule{}, Sets: map[string]*Set{}, Flowtables: map[string]*Flowtable{},
	}
}

// Equal reports whether two tables have the same chains, rules, sets and flow tables.
func (l *Listing) Equal(o *Listing) bool {
	for name := range l.Chains {
		if !l.SameChain(o, name) {
			return false
		}
	}
	return len(l.Chains) == len(o.Chains) && maps.EqualFunc(l.Sets, o.Sets, (*Set).Equal) &&
		maps.EqualFunc(l.Flowtables, o.Flowtables, (*Flowtable).Equal)
}

// SameChain reports whether two tables have the same chain of a name, with the same rules.
func (l *Listing) SameChain(o *Listing, name string) bool {
	a, b := l.Chains[name], o.Chains[name]
	return a != nil && b != nil && a.Equal(b) && slices.EqualFunc(l.Rules[name], o.Rules[name], Rule.Equal)
}

// List reads a table; nil if there is none. It fails with ErrChanged where the table goes meanwhile.
func (c *Conn) List(t Table) (*Listing, error) {
	l := NewListing()
	exists, dormant, err := c.Lookup(t)
	if err != nil || !exists {
		return nil, err
	}
	l.Dormant = dormant
	for _, part := range []struct {
		what string
		typ  uint16
		add  func(message)
	}{
		{"chains", unix.NFT_MSG_GETCHAIN, l.addChain},
		{"rules", unix.NFT_MSG_GETRULE, l.addRule},
		{"sets", unix.NFT_MSG_GETSET, l.addSet},
		{"objects", unix.NFT_MSG_GETOBJ, func(message) { l.Others++ }},
		{"flow tables", unix.NFT_MSG_GETFLOWTABLE, l.addFlowtable},
	} {
		err := c.dump(t, part.typ, part.add)
		if errors.Is(err, unix.ENOENT) {
			err = ErrChanged
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s of table %s: %w", part.what, t.Name, err)
		}
	}
	return l, nil
}

// dump calls each with what is listed of a table, all of one finished transaction.
func (c *Conn) dump(t Table, typ uint16, each func(message)) error {
	g, err := c.FinishedGeneration()
	if err != nil {
		return err
	}
	return c.dumpOf(g, t, typ, each)
}

// dumpOf is dump while the last transaction is the one of g.
func (c *Conn) dumpOf(g Generation, t Table, typ uint16, each func(message)) error {
	return c.request(listRequest(t, typ, unix.NLM_F_DUMP), func(m message) error {
		if m.generation() != uint16(g.ID) {
			return ErrChanged
		}
		if m.isOf(t) { // the kernel lists chains of all tables
			each(m)
		}
		return nil
	})
}

func listRequest(t Table, typ, flags uint16) []byte {
	m := startMessage(nil, nftMessage(typ), flags, t.Family, 0)
	return endMessage(putString(m, unix.NFTA_TABLE_NAME, t.Name), 0)
}

// Lookup reports whether a table exists, and whether it is dormant: packets do
// not meet a dormant table.
func (c *Conn) Lookup(t Table) (exists, dormant bool, err error) {
	err = c.request(listRequest(t, unix.NFT_MSG_GETTABLE, 0), func(m message) error {
		dormant = m.uint32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("looking for table %s: %w", t.Name, err)
	}
	return true, dormant, nil
}

func (l *Listing) addChain(m message) {
	c := &Chain{Name: m.string(unix.NFTA_CHAIN_NAME), Comment: comment(m.find(chainUserData), commentUserData)}
	if m.find(unix.NFTA_CHAIN_HOOK) != nil {
		c.Hook = &Hook{
			Type:     m.string(unix.NFTA_CHAIN_TYPE),
			Number:   m.uint32(unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM),
			Priority: int32(m.uint32(unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)),
			Policy:   m.uint32(unix.NFTA_CHAIN_POLICY),
		}
	}
	l.Chains[c.Name] = c
}

func (l *Listing) addRule(m message) {
	chain := m.string(unix.NFTA_RULE_CHAIN)
	l.Rules[chain] = append(l.Rules[chain], Rule{
		Exprs:   bytes.Clone(m.find(unix.NFTA_RULE_EXPRESSIONS)),
		Comment: comment(m.find(unix.NFTA_RULE_USERDATA), commentUserData),
	})
}

func (l *Listing) addSet(m message) {
	flags := m.uint32(unix.NFTA_SET_FLAGS)
	if flags&unix.NFT_SET_ANONYMOUS != 0 { // belongs to its rule
		return
	}
	s := &Set{
		Name:     m.string(unix.NFTA_SET_NAME),
		Key:      Type{m.uint32(unix.NFTA_SET_KEY_TYPE), m.uint32(unix.NFTA_SET_KEY_LEN)},
		Data:     Type{m.uint32(unix.NFTA_SET_DATA_TYPE), m.uint32(unix.NFTA_SET_DATA_LEN)},
		Dynamic:  flags&unix.NFT_SET_EVAL != 0,
		Timeouts: flags&unix.NFT_SET_TIMEOUT != 0,
		Size:     m.uint32(unix.NFTA_SET_DESC, unix.NFTA_SET_DESC_SIZE),
		Comment:  comment(m.find(unix.NFTA_SET_USERDATA), setComment),
	}
	if flags&(unix.NFT_SET_CONSTANT|unix.NFT_SET_INTERVAL|unix.NFT_SET_OBJECT) != 0 {
		s.Key = Type{} // never equal to a set of ours
	}
	l.Sets[s.Name] = s
}

// setCount is NFTA_SET_COUNT of <linux/netfilter/nf_tables.h>, which 6.18 has, and 6.1 has not.
const setCount = 20

// Count returns how many elements a set has; known is false where the kernel does not tell.
func (c *Conn) Count(t Table, set string) (n int, known bool, err error) {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETSET), 0, t.Family, 0)
	m = putString(putString(m, unix.NFTA_SET_TABLE, t.Name), unix.NFTA_SET_NAME, set)
	err = c.request(endMessage(m, 0), func(m message) error {
		n, known = int(m.uint32(setCount)), m.find(setCount) != nil
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("asking for set %s: %w", set, err)
	}
	return n, known, nil
}

// chainTries is how often the chains are listed if they change meanwhile. A list of
// 10,000 takes some ms.
const chainTries = 100

// Chains returns the names of the chains of a table, sorted; nil: there is no such table.
func (c *Conn) Chains(t Table) ([]string, error) {
	exists, _, err := c.Lookup(t)
	if err != nil || !exists {
		return nil, err
	}
	var names []string
	err = untilUnchanged(func() error {
		names = []string{}
		return c.dump(t, unix.NFT_MSG_GETCHAIN, func(m message) { names = append(names, m.string(unix.NFTA_CHAIN_NAME)) })
	})
	if err != nil {
		return nil, fmt.Errorf("listing chains of table %s: %w", t.Name, err)
	}
	slices.Sort(names)
	return names, nil
}

// untilUnchanged lists again what changed meanwhile.
func untilUnchanged(list func() error) (err error) {
	for range chainTries {
		if err = list(); !errors.Is(err, ErrChanged) {
			break
		}
	}
	return err
}

// Scan calls each with every element of a set, which is valid until each returns.
// While the kernel grows a set, for some milliseconds after many elements were added,
// elements are left out or listed twice. A commit meanwhile does not end it. After
// an error the Conn may only be closed: the rest is not read.
func (c *Conn) Scan(t Table, set string, each func(*Element) error) error {
	var e Element
	return c.ScanRaw(t, set, func(attrs []byte) error {
		e.decode(attrs)
		return each(&e)
	})
}

// ScanRaw is Scan with elements as the kernel lists them: attributes NFTA_SET_ELEM_*,
// which are valid until each returns.
func (c *Conn) ScanRaw(t Table, set string, each func(attrs []byte) error) error {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, t.Family, 0)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_SET, set)
	err := c.ask(endMessage(m, 0), nil, func(m message) error {
		for _, element := range nlmsg.Attrs(m.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if err := each(element.Value()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing the elements of set %s: %w", set, err)
	}
	return nil
}

// Get requests single elements of a set by their keys, and calls found with the
// index of each that exists. Where a set has hundreds of thousands of elements this
// is faster than Scan: for each part of a listing the kernel walks over all that it
// has listed before.
func (c *Conn) Get(t Table, set string, count int, key func(i int) []byte, found func(i int, e *Element)) error {
	var e Element
	at := 0                                                                     // elements before it are done
	most := min(max(granted(c.fd, unix.SO_RCVBUF)/answerBytes, 1), maxElements) // at once
	for step := most; at < count; {
		end := min(at+step, count)
		err := c.request(getRequest(t, set, at, end, key), func(m message) error {
			e.decode(m.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM))
			found(at, &e)
			at++
			return nil
		})
		switch {
		case errors.Is(err, unix.ENOENT): // the answers end here
			at++
			step = max(step/2, 1)
		case err != nil:
			return fmt.Errorf("looking into set %s: %w", set, err)
		default:
			at = end
			step = min(2*step, most)
		}
	}
	return nil
}

func getRequest(t Table, set string, from, to int, key func(i int) []byte) []byte {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETSETELEM), unix.NLM_F_ACK, t.Family, 0)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_SET, set)
	list := len(m)
	m = startNest(m, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := from; i < to; i++ {
		elem := len(m)
		m = startNest(m, unix.NFTA_LIST_ELEM)
		m = putValue(m, unix.NFTA_SET_ELEM_KEY, key(i))
		m = endNest(m, elem)
	}
	return endMessage(endNest(m, list), 0)
}

func (e *Element) decode(b []byte) {
	*e = Element{
		Key:     nlmsg.Find(b, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
		Data:    nlmsg.Find(b, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE),
		Timeout: milliseconds(nlmsg.Find(b, unix.NFTA_SET_ELEM_TIMEOUT)),
		Expires: milliseconds(nlmsg.Find(b, unix.NFTA_SET_ELEM_EXPIRATION)),
		Comment: comment(nlmsg.Find(b, unix.NFTA_SET_ELEM_USERDATA), commentUserData),
	}
}

func (l *Listing) addFlowtable(m message) {
	flags := m.uint32(flowtableFlags)
	f := &Flowtable{
		Name: m.string(flowtableName), Priority: int32(m.uint32(flowtableHook, flowtablePriority)),
		Offload: flags&flowtableHW != 0, Counter: flags&flowtableCounter != 0,
	}
	for _, d := range nlmsg.Attrs(m.find(flowtableHook, flowtableDevices)) {
		f.Devices = append(f.Devices, nlmsg.String(d.Value()))
	}
	slices.Sort(f.Devices)
	l.Flowtables[f.Name] = f
}
