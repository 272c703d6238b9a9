package links

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

const (
	// debounce is how long changes are collected before they are reported as one:
	// bringing an interface up causes a dozen.
	debounce = 50 * time.Millisecond

	// reopenDelay is how long to wait before a failed socket is opened again.
	reopenDelay = time.Second

	// rereadDelay is how long to wait before addresses that could not be read are read again.
	rereadDelay = time.Second
)

// Watch calls changed, in the caller's goroutine, whenever the result of Addrs may
// have changed, at most every 50 ms, until ctx ends. It also calls it once at the
// start, when changes are being watched, and whenever some may have been missed.
// After an error it calls it again until there is none.
func Watch(ctx context.Context, log *slog.Logger, changed func() error) {
	wake, ended := Changes(ctx, log)
	defer ended()
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
		case <-time.After(debounce):
		}
		select { // changes until now are included
		case <-wake:
		default:
		}
		err := changed()
		if again = nil; err != nil {
			again = time.After(rereadDelay)
		}
		if err != nil && failed == nil { // once
			log.Warn("cannot read the addresses of this host; keeping the last known ones", "err", err, "retry", rereadDelay)
		}
		failed = err
	}
}

// Changes returns a channel that has a value once something may have changed that Watch
// tells of, a link that went down or came up among it, until ctx ends; and a function that
// waits for the end. The first value comes when changes are being watched, in the network
// namespace of the caller's thread.
func Changes(ctx context.Context, log *slog.Logger) (changes <-chan struct{}, ended func()) {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	s, err := subscribe() // here, for the network namespace of this thread
	go func() {
		defer close(done)
		listen(ctx, log, wake, s, err)
	}()
	return wake, func() { <-done }
}

// listen fills wake at each change until ctx ends. It replaces a failed socket.
func listen(ctx context.Context, log *slog.Logger, wake chan<- struct{}, s *subscription, err error) {
	for {
		if err == nil {
			err = s.receive(ctx, wake)
		}
		if ctx.Err() != nil {
			return
		}
		log.Warn("lost the watch on addresses and routes; reopening it", "err", err, "retry", reopenDelay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopenDelay):
		}
		s, err = subscribe()
	}
}

// A subscription is a socket that receives changes. It ignores what cannot change Addrs but may be
// frequent: the addresses of Own, one for each of many services, and routes other than default ones,
// which a router learns all the time.
type subscription struct {
	*nl.NetlinkSocket
	own int // index of Own
}

func subscribe() (*subscription, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribing to rtnetlink: %w", err)
	}
	return &subscription{s, ownIndex()}, nil
}

// receive fills changes once and then at each change, until ctx ends or the socket fails. It closes s.
func (s *subscription) receive(ctx context.Context, changes chan<- struct{}) error {
	defer s.Close()
	defer context.AfterFunc(ctx, s.Close)()

	wake.Once(changes)
	for {
		msgs, from, err := s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // the socket still works, but messages are lost
			s.own = ownIndex()
			wake.Once(changes)
		case err != nil:
			return fmt.Errorf("reading from rtnetlink: %w", err)
		case from.Pid == nl.PidKernel:
			for i := range msgs { // all of them: a link message may change the index of Own
				if s.matters(&msgs[i]) {
					wake.Once(changes)
				}
			}
		}
	}
}

// ownIndex returns the index of Own; 0: it does not exist.
func ownIndex() int {
	index, _ := Index(Own)
	return index
}

func (s *subscription) matters(m *syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return s.linkMatters(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && int(nl.DeserializeIfAddrmsg(m.Data).Index) != s.own
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(m.Data) >= unix.SizeofRtMsg && nl.DeserializeRtMsg(m.Data).Dst_len == 0
	}
	return false
}

func (s *subscription) linkMatters(m *syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	index := int(nl.DeserializeIfInfomsg(m.Data).Index)
	if nlmsg.String(nlmsg.Find(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)) != Own {
		if index == s.own {
			s.own = 0 // renamed: not ours any more
		}
		return true
	}
	if m.Header.Type == unix.RTM_DELLINK {
		s.own = 0
		return false
	}
	renamed := s.own != index
	s.own = index
	return renamed
}
