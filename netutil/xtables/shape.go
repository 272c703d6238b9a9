package xtables

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Shape says how large a table of the legacy variant is, and where its built-in
// chains begin in it: struct ipt_getinfo, <linux/netfilter_ipv4/ip_tables.h>, which is
// that of ip6_tables too. Whoever removes or inserts rules changes it.
type Shape struct {
	name                  [32]byte
	hooks                 uint32
	hookEntry, underflow  [5]uint32
	Entries, SizeInMemory uint32
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const getInfo = 64

// ShapeOf returns the shape of a table of the legacy variant in the network namespace
// of the caller. It costs a system call, whatever the table holds.
func (t *Tool) ShapeOf(table string) (Shape, error) {
	s, err := t.shapeOf(table)
	if err != nil {
		return Shape{}, fmt.Errorf("asking for the size of table %s: %w", table, err)
	}
	return s, nil
}

func (t *Tool) shapeOf(table string) (s Shape, err error) {
	copy(s.name[:len(s.name)-1], table)
	err = t.ask(getInfo, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

// ask has the kernel answer a question of the legacy variant into memory that names the table.
func (t *Tool) ask(question uintptr, answer unsafe.Pointer, room uintptr) (err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if t.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	size := uint32(room)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), question,
		uintptr(answer), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
