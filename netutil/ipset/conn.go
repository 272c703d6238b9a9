package ipset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// replyTimeout limits the wait for the reply to one message, whatever the
// context allows. The kernel replies at once, except while it grows a hash.
const replyTimeout = 30 * time.Second

// batchBytes is how many bytes of members go into one message. The length of an
// attribute is 16 bits wide, also that of the one that holds all members.
const batchBytes = 48 << 10

// dumpTries is how often a listing is tried that changes by other processes interrupt.
const dumpTries = 8

// A Conn is a connection to the IP sets of the network namespace that it is
// used in. One goroutine at a time may use it.
type Conn struct {
	nl        *netlink.Conn // nil after an error that may have left replies unread
	revisions map[Set]uint8 // by type and family

	Messages int // sent so far
}

// Dial opens a connection.
func Dial() (*Conn, error) {
	c := &Conn{revisions: map[Set]uint8{}}
	return c, c.dial()
}

func (c *Conn) dial() (err error) {
	if c.nl != nil {
		return nil
	}
	if c.nl, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	return nil
}

// Close closes the connection. The next use opens it again.
func (c *Conn) Close() error {
	if c.nl == nil {
		return nil
	}
	err := c.nl.Close()
	c.nl = nil
	return err
}

// Create creates an empty set.
func (c *Conn) Create(ctx context.Context, s Set) error {
	if len(s.Name) > MaxName {
		return fmt.Errorf("ip set %s: the name is longer than %d bytes", s.Name, MaxName)
	}
	rev, err := c.revision(ctx, s.Type, s.IPv6)
	if err != nil {
		return fmt.Errorf("creating ip set %s: type %s: %w", s.Name, s.Type, err)
	}
	e := newMessage(s.Name)
	e.text(attrTypeName, string(s.Type))
	e.bytes(attrRevision, rev)
	e.bytes(attrFamily, family(s.IPv6))
	at := e.open(attrData)
	e.uint32(attrHashSize, 1024) // the kernel doubles it as members come
	e.uint32(attrMaxElem, s.MaxElem)
	e.close(at)
	if _, err := c.request(ctx, cmdCreate, netlink.Acknowledge|netlink.Create|netlink.Excl, e); err != nil {
		return fmt.Errorf("creating ip set %s: %w", s.Name, err)
	}
	return nil
}

// Probe returns nil if the kernel supports a type of set.
func (c *Conn) Probe(ctx context.Context, t Type, v6 bool) error {
	_, err := c.revision(ctx, t, v6)
	if IsUnsupported(err) {
		return fmt.Errorf("the kernel has no IP sets: module ip_set cannot be loaded, or is not there (svcproxy init loads it): %w", err)
	}
	if err != nil {
		return fmt.Errorf("type %s: %w", t, err)
	}
	return nil
}

// IsUnsupported reports whether an error means that the kernel has no IP sets: it lacks
// netfilter's netlink, or nfnetlink_rcv_msg finds no NFNL_SUBSYS_IPSET.
func IsUnsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

func family(v6 bool) byte {
	if v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// preferredRevision is a revision of all our types that every ipset program can list:
// the first with SCTP, Linux 3.0. It has everything we use. A program older than the
// kernel does not know the kernel's newest.
const preferredRevision = 1

// revision returns the revision of a type nearest to preferredRevision that the kernel has.
func (c *Conn) revision(ctx context.Context, t Type, v6 bool) (uint8, error) {
	key := Set{Type: t, IPv6: v6}
	if rev, ok := c.revisions[key]; ok {
		return rev, nil
	}
	e := newMessage("")
	e.text(attrTypeName, string(t))
	e.bytes(attrFamily, family(v6))
	replies, err := c.request(ctx, cmdType, 0, e)
	if err != nil {
		return 0, err
	}
	var newest, oldest uint8
	for _, m := range replies {
		newest = nlmsg.Uint8(nlmsg.Find(attributes(m), attrRevision))
		oldest = newest
		if least := nlmsg.Find(attributes(m), attrRevisionMin); least != nil {
			oldest = nlmsg.Uint8(least)
		}
	}
	c.revisions[key] = max(oldest, min(newest, preferredRevision))
	return c.revisions[key], nil
}

// Destroy removes a set, if it exists. One that a rule uses gives ErrBusy.
func (c *Conn) Destroy(ctx context.Context, name string) error {
	_, err := c.request(ctx, cmdDestroy, netlink.Acknowledge, newMessage(name))
	if err != nil && !errors.Is(err, ErrNotExist) {
		return fmt.Errorf("destroying ip set %s: %w", name, err)
	}
	return nil
}

// Flush empties a set, of any type.
func (c *Conn) Flush(ctx context.Context, name string) error {
	if _, err := c.request(ctx, cmdFlush, netlink.Acknowledge, newMessage(name)); err != nil {
		return fmt.Errorf("emptying ip set %s: %w", name, err)
	}
	return nil
}

// Swap exchanges two sets of one type: rules that use one use the other.
func (c *Conn) Swap(ctx context.Context, a, b string) error {
	e := newMessage(a)
	e.text(attrTypeName, b)
	if _, err := c.request(ctx, cmdSwap, netlink.Acknowledge, e); err != nil {
		return fmt.Errorf("swapping ip sets %s and %s: %w", a, b, err)
	}
	return nil
}

// Add adds members. Existing ones are no error.
func (c *Conn) Add(ctx context.Context, name string, entries []Entry) error {
	if err := c.change(ctx, cmdAdd, name, entries); err != nil {
		return fmt.Errorf("adding %d members to ip set %s: %w", len(entries), name, err)
	}
	return nil
}

// Delete removes members. Missing ones are no error.
func (c *Conn) Delete(ctx context.Context, name string, entries []Entry) error {
	if err := c.change(ctx, cmdDel, name, entries); err != nil {
		return fmt.Errorf("removing %d members from ip set %s: %w", len(entries), name, err)
	}
	return nil
}

func (c *Conn) change(ctx context.Context, cmd int, name string, entries []Entry) error {
	for len(entries) > 0 {
		e := newMessage(name)
		e.uint32(attrLineno, 0) // without it the kernel takes only one member
		at := e.open(attrADT)
		n := 0
		for n < len(entries) && len(e.b)-at < batchBytes {
			if m := entries[n]; m.Net.IsValid() && m.Net.Bits() == 0 {
				return fmt.Errorf("%v: the kernel takes no prefix of length 0", m)
			}
			e.entry(n+1, entries[n])
			n++
		}
		e.close(at)
		if _, err := c.request(ctx, cmd, netlink.Acknowledge, e); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// request sends a message and returns the replies. If the kernel did not reply in
// time its reply may still arrive, so the socket is closed.
func (c *Conn) request(ctx context.Context, cmd int, flags netlink.HeaderFlags, e *encoder) ([]netlink.Message, error) {
	if err := errors.Join(ctx.Err(), c.dial()); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(replyTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.nl.SetDeadline(deadline); err != nil {
		return nil, err
	}
	c.Messages++
	replies, err := c.nl.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_IPSET<<8 | cmd),
			Flags: netlink.Request | flags,
		},
		Data: e.b,
	})
	if err == nil {
		return replies, nil
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && isSetError(Error(errno)) {
		return nil, Error(errno)
	}
	return nil, errors.Join(err, c.Close())
}

// isSetError reports whether e comes from the IP sets; their errors arrive as errnos.
func isSetError(e Error) bool {
	return e >= errPrivate || e == ErrNotExist || e == ErrExist
}

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
