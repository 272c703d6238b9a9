package nftables

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// putAddr, putPort and putNumber append one field, padded to 4 bytes.
func putAddr(b []byte, a netip.Addr) []byte { return append(b, a.AsSlice()...) }

func putPort(b []byte, p uint16) []byte { return append(b, byte(p>>8), byte(p), 0, 0) }

func putNumber(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

func putTarget(b []byte, t netip.AddrPort) []byte { return putPort(putAddr(b, t.Addr()), t.Port()) }

// records are the elements of one set, each a key and data of fixed lengths, one
// after another: a million of them are no work for the garbage collector.
type records struct {
	keyLen, recordLen int // of a record's key, and of all of it, in bytes
	interval          bool
	buf               []byte
	comments          []string // comments; nil where the set has none
	index             []uint32 // hash table of numbers of records, plus one; nil: not made yet
}

func newRecords(s set, fam policy.Family) *records {
	key, data := s.fieldTypes(fam)
	r := &records{keyLen: int(padded(key)), interval: s.isInterval()}
	if r.interval {
		r.keyLen *= 2 // first and last
	}
	r.recordLen = r.keyLen + int(padded(data))
	return r
}

// padded returns the length of fields in registers, of 4 bytes each.
func padded(fields []nft.Type) (n uint32) {
	for _, f := range fields {
		n += (f.Len + 3) &^ 3
	}
	return n
}

func (r *records) count() int { return len(r.buf) / r.recordLen }

// add appends a record. The caller knows that its key is new.
func (r *records) add(key, data []byte, note string) {
	r.buf = append(append(r.buf, key...), data...)
	if note != "" || r.comments != nil {
		r.comments = append(r.comments, note)
	}
}

func (r *records) key(i int) []byte { return r.buf[i*r.recordLen:][:r.keyLen] }

func (r *records) data(i int) []byte { return r.buf[i*r.recordLen:][r.keyLen:r.recordLen] }

func (r *records) comment(i int) string {
	if r.comments == nil {
		return ""
	}
	return r.comments[i]
}

var seed = maphash.MakeSeed()

// find returns the number of the record with a key, -1 if there is none.
func (r *records) find(key []byte) int {
	if r.index == nil {
		r.makeIndex()
	}
	mask := uint64(len(r.index) - 1)
	for at := maphash.Bytes(seed, key) & mask; ; at = (at + 1) & mask {
		n := r.index[at]
		if n == 0 {
			return -1
		}
		if bytes.Equal(r.key(int(n-1)), key) {
			return int(n - 1)
		}
	}
}

// makeIndex makes a table of open addressing, at most half full.
func (r *records) makeIndex() {
	size := 4
	for size < 2*r.count() {
		size *= 2
	}
	r.index = make([]uint32, size)
	mask := uint64(size - 1)
	for i := range r.count() {
		at := maphash.Bytes(seed, r.key(i)) & mask
		for r.index[at] != 0 {
			at = (at + 1) & mask
		}
		r.index[at] = uint32(i + 1)
	}
}

// element returns a record in the form that the kernel takes.
func (r *records) element(i int) nft.Element {
	return element(r.key(i), r.data(i), r.comment(i), r.interval)
}

func element(key, data []byte, note string, interval bool) nft.Element {
	e := nft.Element{Key: key, Data: data, Comment: note}
	if interval {
		e.Key, e.KeyEnd = key[:len(key)/2], key[len(key)/2:]
	}
	return e
}

// all returns every record in the form that the kernel takes, some those with these numbers.
func (r *records) all() iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for i := range r.count() {
			if !yield(r.element(i)) {
				return
			}
		}
	}
}

func (r *records) some(numbers []int) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for _, i := range numbers {
			if !yield(r.element(i)) {
				return
			}
		}
	}
}

// A tally is a checksum of the elements of a set, whatever their order.
type tally struct {
	count int
	sum   uint64 // of the hashes of all elements
}

func (t *tally) add(key, data []byte, note string, by int) {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(key)
	h.Write(data)
	h.WriteString(note)
	t.count += by
	if by > 0 {
		t.sum += h.Sum64()
	} else {
		t.sum -= h.Sum64()
	}
}
