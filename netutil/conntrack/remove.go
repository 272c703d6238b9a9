package conntrack

import (
	"bytes"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// batchSize is how many entries are edited at once. If none of them can be, the
// answers, of less than 1 KiB each as the kernel counts, fit into a receive
// buffer of the default size, 208 KiB.
const batchSize = 100

// An edit is what the kernel is to do to an entry.
type edit struct {
	verb  string // in errors
	typ   netlink.HeaderType
	attrs []byte // beside those that name the entry
}

var removal = edit{verb: "removing", typ: deleteEntry}

// An editor has the kernel change or forget entries, many at a time: one after the other,
// as ti-mo/conntrack does it, costs 40 µs and 10 KB of garbage each; so, 4 µs.
type editor struct {
	*socket
	edit
	family byte

	batch  []netlink.Message
	done   int
	failed error // the first that could not be edited
}

// add edits e, now or in a later call. The attributes that name it go back as
// they came: both tuples, the zone, which may hold for one direction only, and
// the number, so that a new flow in its place stays.
func (r *editor) add(e *entry) error {
	m := netlink.Message{
		Header: netlink.Header{Type: r.typ, Flags: netlink.Request},
		Data:   []byte{r.family, unix.NFNETLINK_V0, 0, 0},
	}
	for _, a := range e.names {
		m.Data = append(m.Data, a...)
		m.Data = append(m.Data, make([]byte, align(len(a))-len(a))...)
	}
	m.Data = append(m.Data, r.attrs...)
	r.batch = append(r.batch, m)
	if len(r.batch) < batchSize {
		return nil
	}
	return r.flush()
}

// flush removes what was added. It fails if the kernel cannot be asked; past an
// entry that it does not edit it goes on.
func (r *editor) flush() error {
	if len(r.batch) == 0 {
		return nil
	}
	r.batch[len(r.batch)-1].Header.Flags |= netlink.Acknowledge // of the others it answers to failures only
	sent, err := r.SendMessages(r.batch)
	if err != nil {
		return fmt.Errorf("%s %d conntrack flows: %w", r.verb, len(r.batch), err)
	}
	r.done += len(sent)
	first := sent[0].Header.Sequence
	for done := false; !done; {
		err := r.read(func(m message) error {
			i := int(m.seq - first)
			if i >= len(sent) || !m.last() {
				return nil
			}
			done = i == len(sent)-1
			r.answer(sent[i], m.errno())
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s %d conntrack flows: %w", r.verb, len(r.batch), err)
		}
	}
	r.batch = r.batch[:0]
	return nil
}

// answer takes the kernel's answer to one message.
func (r *editor) answer(m netlink.Message, errno unix.Errno) {
	if errno == 0 {
		return
	}
	r.done--
	if errno == unix.ENOENT || r.failed != nil { // it is gone already
		return
	}
	var e entry
	_ = e.decode(bytes.Clone(m.Data)) // it is our own
	r.failed = fmt.Errorf("%s conntrack flow %v to %v: %w", r.verb, e.orig.src, e.orig.dst, errno)
}
