package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getEntries is IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES.
const getEntries = 65

// Offsets in struct ipt_get_entries and ip6t_get_entries, which are alike.
const (
	tableSize  = 32 // after the name
	firstEntry = 40
)

// An entryLayout says where in struct ipt_entry or ip6t_entry are the length of the
// rule, its matches and target included, and the counters, two of 64 bits.
type entryLayout struct{ next, counters, size int }

var layouts = map[bool]entryLayout{ // by whether it is of IPv6
	false: {next: 90, counters: 96, size: 112},
	true:  {next: 142, counters: 152, size: 168},
}

const countersSize = 16

// ContentOf returns a sum of all rules of a table of the legacy variant, without
// their counters, in the network namespace of the caller. A rule that keeps a state
// of its own in the table may have another one each time. It costs a hundredth of
// what a listing does: the kernel copies the table, and no program prints or parses it.
func (t *Tool) ContentOf(table string) (Sum, error) {
	sum, err := t.contentOf(table)
	if err != nil {
		return 0, fmt.Errorf("reading the entries of table %s: %w", table, err)
	}
	return sum, nil
}

func (t *Tool) contentOf(table string) (sum Sum, err error) {
	shape, err := t.shapeOf(table)
	if err != nil {
		return 0, err
	}
	text, err := unix.Mmap(-1, 0, firstEntry+int(shape.SizeInMemory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(text)) }()
	copy(text[:tableSize-1], table)
	binary.NativeEndian.PutUint32(text[tableSize:], shape.SizeInMemory)
	if err := t.ask(getEntries, unsafe.Pointer(&text[0]), uintptr(len(text))); err != nil {
		return 0, err
	}
	if err := withoutCounters(text[firstEntry:], layouts[t.IPv6]); err != nil {
		return 0, err
	}
	return Sum(maphash.Bytes(seed, text[firstEntry:])), nil
}

var errEntries = errors.New("entries of an unknown layout")

// withoutCounters sets the counters of all entries to 0.
func withoutCounters(entries []byte, l entryLayout) error {
	for len(entries) > 0 {
		if len(entries) < l.size {
			return errEntries
		}
		next := int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < l.size || next > len(entries) {
			return errEntries
		}
		clear(entries[l.counters : l.counters+countersSize])
		entries = entries[next:]
	}
	return nil
}
