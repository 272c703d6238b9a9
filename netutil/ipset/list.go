package ipset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
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
		if name := nlmsg.Find(attributes(m), attrSetName); name != nil {
			names = append(names, nlmsg.String(name))
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
		l.add(attributes(m))
	}
	return l, nil
}

// add decodes one message of a dump: the first describes the set, all may have members.
func (l *Listing) add(attrs []byte) {
	if header := nlmsg.Find(attrs, attrData); header != nil {
		l.Type = Type(nlmsg.String(nlmsg.Find(attrs, attrTypeName)))
		l.IPv6 = nlmsg.Uint8(nlmsg.Find(attrs, attrFamily)) == unix.AF_INET6
		l.MaxElem = nlmsg.Uint32(nlmsg.Find(header, attrMaxElem))
		l.HasTimeout = nlmsg.Find(header, attrTimeout) != nil
	}
	for _, member := range nlmsg.Attrs(nlmsg.Find(attrs, attrADT)) {
		l.Entries = append(l.Entries, decodeEntry(member.Value()))
	}
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
