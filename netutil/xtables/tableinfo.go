package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
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
func (t *Tool) ReadInfo(table string) (s TableInfo, err error) {
	copy(s.name[:len(s.name)-1], table)
	if err := getsockopt(t.IPv6, getInfo, unsafe.Pointer(&s), unsafe.Sizeof(s)); err != nil {
		return TableInfo{}, fmt.Errorf("reading the size of table %s: %w", table, err)
	}
	return s, nil
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

// getEntries is IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES.
const getEntries = 65

// Offsets in struct ipt_get_entries and ip6t_get_entries, which are alike.
const (
	tableSize  = 32 // after the name
	firstEntry = 40
)

// ReadSum returns a checksum of all rules of a table of the legacy variant, without
// their counters, in the network namespace of the caller. Rules that keep state in the
// table may change it each time. It costs a hundredth of a listing: the kernel copies
// the table, and no program prints or parses it.
func (t *Tool) ReadSum(table string) (sum Sum, err error) {
	defer func() {
		if err != nil {
			sum, err = 0, fmt.Errorf("reading the entries of table %s: %w", table, err)
		}
	}()
	info, err := t.ReadInfo(table)
	if err != nil {
		return 0, err
	}
	buf, err := unix.Mmap(-1, 0, firstEntry+int(info.SizeInMemory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(buf)) }()
	copy(buf[:tableSize-1], table)
	binary.NativeEndian.PutUint32(buf[tableSize:], info.SizeInMemory)
	if err := getsockopt(t.IPv6, getEntries, unsafe.Pointer(&buf[0]), uintptr(len(buf))); err != nil {
		return 0, err
	}
	// Offsets in struct ipt_entry or ip6t_entry of the length of the rule, including its matches and
	// target, and of the counters, two of 64 bits.
	next, counters, size := 90, 96, 112
	if t.IPv6 {
		next, counters, size = 142, 152, 168
	}
	for entries := buf[firstEntry:]; len(entries) > 0; {
		if len(entries) < size {
			return 0, errEntries
		}
		length := int(binary.NativeEndian.Uint16(entries[next:]))
		if length < size || length > len(entries) {
			return 0, errEntries
		}
		clear(entries[counters : counters+16])
		entries = entries[length:]
	}
	return Sum(maphash.Bytes(seed, buf[firstEntry:])), nil
}

var errEntries = errors.New("unknown layout of the entries")
