package links

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long changes are collected before they are told as one:
	// bringing an interface up makes a dozen of them.
	settle = 50 * time.Millisecond

	// reopen is how long to wait before a socket that broke is opened again.
	reopen = time.Second

	// reread is how long to wait before addresses that could not be read are read again.
	reread = time.Second
)

// Watch calls changed, from the goroutine that called it, whenever what Addrs
// returns may have changed, at most every 50 ms, until ctx ends. It calls it
// once at the start, when changes are being watched, and whenever some may have
// been missed. After an error it calls it again until there is none.
func Watch(ctx context.Context, log *slog.Logger, changed func() error) {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	s, err := subscribe() // here, for the network namespace of this thread
	go func() {
		defer close(done)
		listen(ctx, log, wake, s, err)
	}()
	defer func() { <-done }()
	var failed error
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-again:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		select { // what came meanwhile is part of it
		case <-wake:
		default:
		}
		err := changed()
		if again = nil; err != nil {
			again = time.After(reread)
		}
		if err != nil && failed == nil { // once
			log.Warn("the addresses of this host stay as last read", "err", err, "retry", reread)
		}
		failed = err
	}
}

// listen fills wake at each change until ctx ends. It replaces a socket that breaks.
func listen(ctx context.Context, log *slog.Logger, wake chan<- struct{}, s *subscription, err error) {
	for {
		if err == nil {
			err = s.receive(ctx, wake)
		}
		if ctx.Err() != nil {
			return
		}
		log.Warn("changes of addresses and routes are not seen", "err", err, "retry", reopen)
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopen):
		}
		s, err = subscribe()
	}
}

// A subscription is a socket that tells of changes.
type subscription struct {
	*nl.NetlinkSocket
	filter filter
}

func subscribe() (*subscription, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribing to rtnetlink: %w", err)
	}
	return &subscription{s, filter{own: ownIndex()}}, nil
}

// receive fills wake once and then at each change, until ctx ends or the socket breaks. It closes s.
func (s *subscription) receive(ctx context.Context, wake chan<- struct{}) error {
	defer s.Close()
	defer context.AfterFunc(ctx, s.Close)()

	ring(wake)
	for {
		msgs, from, err := s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // the socket lives on, messages are lost
			s.filter.own = ownIndex()
			ring(wake)
		case err != nil:
			return fmt.Errorf("reading from rtnetlink: %w", err)
		case from.Pid == nl.PidKernel && s.filter.any(msgs):
			ring(wake)
		}
	}
}

func ring(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// ownIndex returns the index of Own, 0 when it does not exist.
func ownIndex() int {
	l, err := netlink.LinkByName(Own)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}

// A filter leaves out what cannot change Addrs but may come in floods: the
// addresses of Own, one for each of many services, and routes other than
// default ones, of which a router learns new ones all the time.
type filter struct{ own int }

func (f *filter) any(msgs []syscall.NetlinkMessage) (yes bool) {
	for i := range msgs {
		yes = f.matters(&msgs[i]) || yes // all of them: a link message may say which index is Own
	}
	return yes
}

func (f *filter) matters(m *syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return f.linkMatters(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && int(nl.DeserializeIfAddrmsg(m.Data).Index) != f.own
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(m.Data) >= unix.SizeofRtMsg && nl.DeserializeRtMsg(m.Data).Dst_len == 0
	}
	return false
}

func (f *filter) linkMatters(m *syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	index := int(nl.DeserializeIfInfomsg(m.Data).Index)
	if linkName(m.Data) != Own {
		if index == f.own {
			f.own = 0 // renamed: not ours any more
		}
		return true
	}
	if m.Header.Type == unix.RTM_DELLINK {
		f.own = 0
		return false
	}
	renamed := f.own != index
	f.own = index
	return renamed
}

func linkName(data []byte) string {
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return ""
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			return unix.ByteSliceToString(a.Value)
		}
	}
	return ""
}
