package ipset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errInterrupted: the sets changed while the kernel listed them.
var errInterrupted = errors.New("other processes kept changing the sets while they were listed")

// A Listing is a set as the kernel holds it.
type Listing struct {
	Set
	HasTimeout bool // members expire; never so in sets that Create made
	Entries    []Entry
}

// Names returns the names of all sets of the namespace, sorted.
func (c *Conn) Names(ctx context.Context) ([]string, error) {
	e := newMessage("")
	e.uint32(attrFlags, flagListNames)
	replies, err := c.dump(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("listing ip sets: %w", err)
	}
	var names []string
	for _, m := range replies {
		ad, err := attributes(m)
		if err != nil {
			return nil, fmt.Errorf("listing ip sets: %w", err)
		}
		for ad.Next() {
			if ad.Type() == attrSetName {
				names = append(names, ad.String())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// List returns a set with all its members, in no order.
func (c *Conn) List(ctx context.Context, name string) (*Listing, error) {
	replies, err := c.dump(ctx, newMessage(name))
	if err != nil {
		return nil, fmt.Errorf("listing ip set %s: %w", name, err)
	}
	l := &Listing{Set: Set{Name: name}}
	for _, m := range replies {
		if err := l.add(m); err != nil {
			return nil, fmt.Errorf("listing ip set %s: %w", name, err)
		}
	}
	return l, nil
}

// add decodes one message of a dump: the first describes the set, all may have members.
func (l *Listing) add(m netlink.Message) error {
	ad, err := attributes(m)
	if err != nil {
		return err
	}
	for ad.Next() {
		switch ad.Type() {
		case attrTypeName:
			l.Type = Type(ad.String())
		case attrFamily:
			l.IPv6 = ad.Uint8() == unix.AF_INET6
		case attrData:
			ad.Nested(l.header)
		case attrADT:
			ad.Nested(func(n *netlink.AttributeDecoder) error {
				for n.Next() {
					n.Nested(func(d *netlink.AttributeDecoder) error {
						l.Entries = append(l.Entries, decodeEntry(d))
						return nil
					})
				}
				return nil
			})
		}
	}
	return ad.Err()
}

func (l *Listing) header(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrMaxElem:
			l.MaxElem = ad.Uint32()
		case attrTimeout:
			l.HasTimeout = true
		}
	}
	return nil
}

// dump requests a listing until one is not interrupted.
func (c *Conn) dump(ctx context.Context, e *encoder) ([]netlink.Message, error) {
	for range dumpTries {
		replies, err := c.request(ctx, cmdList, netlink.Dump, e)
		if err != nil {
			return nil, err
		}
		interrupted := func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }
		if !slices.ContainsFunc(replies, interrupted) {
			return replies, nil
		}
	}
	return nil, errInterrupted
}
