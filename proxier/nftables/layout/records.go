package layout

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// PutAddr appends the field of an address; putPort and PutNumber those of others, padded to 4 bytes.
func PutAddr(b []byte, a netip.Addr) []byte { return append(b, a.AsSlice()...) }

func putPort(b []byte, p uint16) []byte { return append(b, byte(p>>8), byte(p), 0, 0) }

// PutNumber appends the field of a number.
func PutNumber(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

func putTarget(b []byte, t netip.AddrPort) []byte { return putPort(PutAddr(b, t.Addr()), t.Port()) }

// Records are the elements of one set, each a key and data of fixed lengths, one
// after another: a million of them are no work for the garbage collector. Nil has none.
type Records struct {
	keyLen, recordLen int      // of a record's key, and of all of it, in bytes
	full              [][]byte // blocks of perBlock records each: one list of all would be copied again and again as it grows
	buf               []byte   // those after them
	comments          []string // nil where the set has none
	index             []uint32 // hash table of numbers of records, plus one; nil: not made yet
}

func newRecords(s Set, fam policy.Family) *Records {
	key, data := s.fieldTypes(fam)
	return &Records{keyLen: int(padded(key)), recordLen: int(padded(key) + padded(data))}
}

// padded returns the length of fields in registers, of 4 bytes each.
func padded(fields []nft.Type) (n uint32) {
	for _, f := range fields {
		n += (f.Len + 3) &^ 3
	}
	return n
}

// Count returns how many there are.
func (r *Records) Count() int {
	if r == nil {
		return 0
	}
	return len(r.full)*r.perBlock() + len(r.buf)/r.recordLen
}

// perBlock returns how many records a full block has, of 64 KiB.
func (r *Records) perBlock() int { return 64 << 10 / r.recordLen }

// add appends a record. The caller knows that its key is new.
func (r *Records) add(key, data []byte, note string) {
	if size := r.perBlock() * r.recordLen; len(r.buf) == size {
		r.full = append(r.full, r.buf)
		r.buf = make([]byte, 0, size)
	}
	r.buf = append(append(r.buf, key...), data...)
	if note != "" || r.comments != nil {
		r.comments = append(r.comments, note)
	}
}

// record returns the key and the data of a record.
func (r *Records) record(i int) []byte {
	block, per := r.buf, r.perBlock()
	if n := i / per; n < len(r.full) {
		block = r.full[n]
	}
	return block[i%per*r.recordLen:][:r.recordLen]
}

// Key returns the key of a record.
func (r *Records) Key(i int) []byte { return r.record(i)[:r.keyLen] }

// Data returns the data of a record.
func (r *Records) Data(i int) []byte { return r.record(i)[r.keyLen:] }

func (r *Records) comment(i int) string {
	if r.comments == nil {
		return ""
	}
	return r.comments[i]
}

var seed = maphash.MakeSeed()

// Find returns the number of the record with a key, -1 if there is none.
func (r *Records) Find(key []byte) int {
	if r == nil {
		return -1
	}
	if r.index == nil {
		r.makeIndex()
	}
	mask := uint64(len(r.index) - 1)
	for at := maphash.Bytes(seed, key) & mask; ; at = (at + 1) & mask {
		n := r.index[at]
		if n == 0 {
			return -1
		}
		if bytes.Equal(r.Key(int(n-1)), key) {
			return int(n - 1)
		}
	}
}

// makeIndex makes a table of open addressing, at most half full.
func (r *Records) makeIndex() {
	size := 4
	for size < 2*r.Count() {
		size *= 2
	}
	r.index = make([]uint32, size)
	mask := uint64(size - 1)
	for i := range r.Count() {
		at := maphash.Bytes(seed, r.Key(i)) & mask
		for r.index[at] != 0 {
			at = (at + 1) & mask
		}
		r.index[at] = uint32(i + 1)
	}
}

// Element returns a record in the form that the kernel takes.
func (r *Records) Element(i int) nft.Element {
	return nft.Element{Key: r.Key(i), Data: r.Data(i), Comment: r.comment(i)}
}

// All returns every record in the form that the kernel takes.
func (r *Records) All() iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for i := range r.Count() {
			if !yield(r.Element(i)) {
				return
			}
		}
	}
}

// A Checksum is a checksum of the elements of a set, whatever their order.
type Checksum struct {
	Count int
	sum   uint64 // of the hashes of all elements
}

// addRecord is Add for a record.
func (t *Checksum) addRecord(r *Records, i, by int) { t.Add(r.Key(i), r.Data(i), r.comment(i), by) }

// Add counts an element, once more or, by -1, once less.
func (t *Checksum) Add(key, data []byte, note string, by int) {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(key)
	h.Write(data)
	h.WriteString(note)
	t.Count += by
	if by > 0 {
		t.sum += h.Sum64()
	} else {
		t.sum -= h.Sum64()
	}
}
