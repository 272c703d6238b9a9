package conntrack

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Types of messages, <linux/netfilter/nfnetlink_conntrack.h>.
const (
	changeEntry = unix.NFNL_SUBSYS_CTNETLINK << 8   // IPCTNL_MSG_CT_NEW, without NLM_F_CREATE
	listEntries = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	deleteEntry = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
)

// walk calls each with the entries that match the filters. A kernel that cannot filter
// lists everything, once, so each must check what it gets.
func (s *socket) walk(family byte, filters []filter, each func(*entry) error) error {
	for _, f := range filters {
		ignored := false
		err := s.list(family, f, func(e *entry) error {
			ignored = ignored || !f.matches(e)
			return each(e)
		})
		switch {
		case f.protocol != 0 && filterRejected(err):
			return s.list(family, filter{}, each)
		case err != nil || ignored:
			return err
		}
	}
	return nil
}

// A listError is an errno with which the kernel ends a listing.
type listError struct{ errno unix.Errno }

func (e *listError) Error() string { return e.errno.Error() }
func (e *listError) Unwrap() error { return e.errno }

// dumpError returns the error in the last message of a listing.
func dumpError(m nlmsg.Message) error {
	if errno := m.Errno(); errno != 0 {
		return &listError{errno}
	}
	return nil
}

// filterRejected reports whether the kernel does not support a filter.
func filterRejected(err error) bool {
	e, ok := errors.AsType[*listError](err)
	return ok && (e.errno == unix.EINVAL || e.errno == unix.EOPNOTSUPP)
}

// list calls each with every entry of a family that matches f, as it arrives.
func (s *socket) list(family byte, f filter, each func(*entry) error) error {
	attrs, err := f.encode()
	if err != nil {
		return err
	}
	var e entry
	err = s.dump(listEntries, append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), func(m nlmsg.Message) error {
		if err := e.decode(m.Body); err != nil || e.late {
			return err
		}
		return each(&e)
	})
	if err != nil {
		return fmt.Errorf("listing conntrack flows: %w", err)
	}
	return nil
}

// dump asks for all there is of a type, and calls each with the messages of the answer.
func (s *socket) dump(typ netlink.HeaderType, body []byte, each func(nlmsg.Message) error) error {
	request, err := s.Send(netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request | netlink.Dump}, Data: body})
	if err != nil {
		return err
	}
	for done := false; !done; {
		err := s.read(func(m nlmsg.Message) error {
			if m.Seq != request.Header.Sequence {
				return nil
			}
			if done = m.IsLast(); done {
				return dumpError(m)
			}
			return each(m)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
