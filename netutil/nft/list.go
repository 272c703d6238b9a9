package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A Listing is the content of a table without elements.
type Listing struct {
	Dormant bool
	Chains  map[string]*Chain
	Rules   map[string][]Rule // by chain
	Sets    map[string]*Set
	Others  int // objects and flow tables
}

// List reads a table; nil if there is none.
func (c *Conn) List(t Table) (*Listing, error) {
	l := &Listing{Chains: map[string]*Chain{}, Rules: map[string][]Rule{}, Sets: map[string]*Set{}}
	exists, dormant, err := c.Lookup(t)
	if err != nil || !exists {
		return nil, err
	}
	l.Dormant = dormant
	for _, part := range []struct {
		what string
		typ  uint16
		add  func(message) error
	}{
		{"chains", unix.NFT_MSG_GETCHAIN, l.addChain},
		{"rules", unix.NFT_MSG_GETRULE, l.addRule},
		{"sets", unix.NFT_MSG_GETSET, l.addSet},
		{"objects", unix.NFT_MSG_GETOBJ, l.addOther},
		{"flow tables", unix.NFT_MSG_GETFLOWTABLE, l.addOther},
	} {
		if err := c.dump(t, part.typ, part.add); err != nil {
			return nil, fmt.Errorf("listing %s of table %s: %w", part.what, t.Name, err)
		}
	}
	return l, nil
}

// dump calls each with what is listed of a table.
func (c *Conn) dump(t Table, typ uint16, each func(message) error) error {
	return c.request(listRequest(t, typ, unix.NLM_F_DUMP), func(m message) error {
		if !m.isOf(t) { // the kernel lists chains of all tables
			return nil
		}
		return each(m)
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
		return m.attrs(func(typ uint16, value []byte) error {
			dormant = dormant || typ == unix.NFTA_TABLE_FLAGS && getUint32(value)&unix.NFT_TABLE_F_DORMANT != 0
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("looking for table %s: %w", t.Name, err)
	}
	return true, dormant, nil
}

func (l *Listing) addChain(m message) error {
	c, h := &Chain{}, Hook{}
	hooked := false
	err := m.attrs(func(typ uint16, value []byte) error {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = getString(value)
		case unix.NFTA_CHAIN_POLICY:
			h.Policy = getUint32(value)
		case unix.NFTA_CHAIN_TYPE:
			h.Type = getString(value)
		case chainUserData:
			c.Comment = comment(value, commentUserData)
		case unix.NFTA_CHAIN_HOOK:
			hooked = true
			return attrs(value, h.decode)
		}
		return nil
	})
	if hooked {
		c.Hook = &h
	}
	l.Chains[c.Name] = c
	return err
}

func (h *Hook) decode(typ uint16, value []byte) error {
	switch typ {
	case unix.NFTA_HOOK_HOOKNUM:
		h.Number = getUint32(value)
	case unix.NFTA_HOOK_PRIORITY:
		h.Priority = int32(getUint32(value))
	}
	return nil
}

func (l *Listing) addRule(m message) error {
	var chain string
	var r Rule
	err := m.attrs(func(typ uint16, value []byte) error {
		switch typ {
		case unix.NFTA_RULE_CHAIN:
			chain = getString(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.Exprs = bytes.Clone(value)
		case unix.NFTA_RULE_USERDATA:
			r.Comment = comment(value, commentUserData)
		}
		return nil
	})
	l.Rules[chain] = append(l.Rules[chain], r)
	return err
}

func (l *Listing) addSet(m message) error {
	s := &Set{}
	var flags uint32
	err := m.attrs(func(typ uint16, value []byte) error {
		switch typ {
		case unix.NFTA_SET_NAME:
			s.Name = getString(value)
		case unix.NFTA_SET_FLAGS:
			flags = getUint32(value)
		case unix.NFTA_SET_KEY_TYPE:
			s.Key.Number = getUint32(value)
		case unix.NFTA_SET_KEY_LEN:
			s.Key.Len = getUint32(value)
		case unix.NFTA_SET_DATA_TYPE:
			s.Data.Number = getUint32(value)
		case unix.NFTA_SET_DATA_LEN:
			s.Data.Len = getUint32(value)
		case unix.NFTA_SET_USERDATA:
			s.Comment = comment(value, setComment)
		case unix.NFTA_SET_DESC:
			return attrs(value, s.decodeDesc)
		}
		return nil
	})
	s.Interval, s.Dynamic = flags&unix.NFT_SET_INTERVAL != 0, flags&unix.NFT_SET_EVAL != 0
	s.Timeouts = flags&unix.NFT_SET_TIMEOUT != 0
	if flags&(unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT|unix.NFT_SET_OBJECT) != 0 {
		s.Key = Type{} // never equal to a set of ours
	}
	if flags&unix.NFT_SET_ANONYMOUS == 0 { // an anonymous set belongs to its rule
		l.Sets[s.Name] = s
	}
	return err
}

func (s *Set) decodeDesc(typ uint16, value []byte) error {
	switch typ {
	case unix.NFTA_SET_DESC_SIZE:
		s.Size = getUint32(value)
	case setDescConcat:
		return attrs(value, func(_ uint16, elem []byte) error {
			return attrs(elem, func(_ uint16, n []byte) error {
				s.Fields = append(s.Fields, getUint32(n))
				return nil
			})
		})
	}
	return nil
}

func (l *Listing) addOther(message) error {
	l.Others++
	return nil
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
	for range chainTries {
		names, err = c.chains(t)
		if !errors.Is(err, ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing chains of table %s: %w", t.Name, err)
	}
	slices.Sort(names)
	return names, nil
}

func (c *Conn) chains(t Table) ([]string, error) {
	names := []string{}
	err := c.dump(t, unix.NFT_MSG_GETCHAIN, func(m message) error {
		return m.attrs(func(typ uint16, value []byte) error {
			if typ == unix.NFTA_CHAIN_NAME {
				names = append(names, getString(value))
			}
			return nil
		})
	})
	return names, err
}

// Scan calls each with every element of a set, which is valid until each returns.
// While the kernel grows a set, for some milliseconds after many elements were added,
// elements are left out or listed twice. A commit meanwhile does not end it. After
// an error the Conn may only be closed: the rest is not read.
func (c *Conn) Scan(t Table, set string, each func(*Element) error) error {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, t.Family, 0)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_SET, set)
	var e Element
	err := c.ask(endMessage(m, 0), nil, func(m message) error {
		if len(m.body) < genLen {
			return errTruncated
		}
		list := find(m.body[genLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		return attrs(list, func(_ uint16, value []byte) error {
			e.decode(value)
			return each(&e)
		})
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
	at := 0 // elements before it are done
	most := c.maxQuestions()
	for step := most; at < count; {
		end := min(at+step, count)
		err := c.request(getRequest(t, set, at, end, key), func(m message) error {
			e.decode(find(find(m.body[genLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS), unix.NFTA_LIST_ELEM))
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
		Key:    find(find(b, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE),
		KeyEnd: find(find(b, setElemKeyEnd), unix.NFTA_DATA_VALUE),
		Data:   find(find(b, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE),
	}
	e.Timeout = milliseconds(find(b, unix.NFTA_SET_ELEM_TIMEOUT))
	e.Expires = milliseconds(find(b, unix.NFTA_SET_ELEM_EXPIRATION))
	if u := find(b, unix.NFTA_SET_ELEM_USERDATA); len(u) > 0 {
		e.Comment = comment(u, commentUserData)
	}
}
