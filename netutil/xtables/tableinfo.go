package xtables

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A TableInfo has the size of a table of the legacy variant and the offsets of its
// built-in chains: struct ipt_getinfo, <linux/netfilter_ipv4/ip_tables.h>, the same for
// ip6_tables. Removing or inserting rules changes it.
type TableInfo struct {
	name                  [32]byte
	hooks                 uint32
	hookEntry, underflow  [5]uint32
	Entries, SizeInMemory uint32
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const getInfo = 64

// ReadInfo returns the info of a table of the legacy variant in the network namespace
// of the caller. It costs one system call, whatever the table holds.
func (t *Tool) ReadInfo(table string) (TableInfo, error) {
	s, err := t.readInfo(table)
	if err != nil {
		return TableInfo{}, fmt.Errorf("reading the size of table %s: %w", table, err)
	}
	return s, nil
}

func (t *Tool) readInfo(table string) (s TableInfo, err error) {
	copy(s.name[:len(s.name)-1], table)
	err = getsockopt(t.IPv6, getInfo, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

// getsockopt reads an option of the legacy variant of a family into buf, which names the table.
func getsockopt(v6 bool, option uintptr, buf unsafe.Pointer, length uintptr) (err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if v6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	size := uint32(length)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), option,
		uintptr(buf), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
