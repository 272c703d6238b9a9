package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

// Types of an ICMP echo request; the kernel fills in identifier and checksum.
const (
	icmpEcho   = 8   // RFC 792
	icmpv6Echo = 128 // RFC 4443
)

// Ping sends an ICMP echo request. An answer does not say whose it is: it is Answered by nobody.
func Ping(from *Host, to netip.Addr) Answer {
	file, err := pingSocket(from, to)
	if err != nil {
		return failed(err)
	}
	defer file.Close()
	file.SetDeadline(time.Now().Add(pace.Scale(Patience)))
	request := make([]byte, 16)
	request[0] = icmpEcho
	if to.Is6() {
		request[0] = icmpv6Echo
	}
	binary.BigEndian.PutUint64(request[8:], uint64(nonces.Add(1)))
	if _, err := file.Write(request); err != nil {
		return failed(err)
	}
	if _, err := file.Read(make([]byte, 64)); err != nil {
		return failed(err)
	}
	return Answer{Outcome: Answered}
}

// pingSocket opens a socket that is connected to one host: it hears of ICMP errors.
func pingSocket(from *Host, to netip.Addr) (*os.File, error) {
	family, protocol := unix.AF_INET6, unix.IPPROTO_ICMPV6
	var peer unix.Sockaddr = &unix.SockaddrInet6{Addr: to.As16()}
	if to.Is4() {
		family, protocol = unix.AF_INET, unix.IPPROTO_ICMP
		peer = &unix.SockaddrInet4{Addr: to.As4()}
	}
	var fd int
	err := from.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a ping socket on %s: %w", from.Role, err)
	}
	if err := unix.Connect(fd, peer); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "ping"), nil
}
