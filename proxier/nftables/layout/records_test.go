package layout

import (
	"bytes"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// Records of several blocks are found by their numbers and keys.
func TestRecordsInBlocks(t *testing.T) {
	const count = 10_000
	r := newRecords(Set{kind: slotMap}, policy.IPv4)
	if r.perBlock() >= count/2 {
		t.Fatalf("a block has %d records", r.perBlock())
	}
	key := func(i int) []byte { return PutNumber(make([]byte, 12, 16), uint32(i)) }
	data := func(i int) []byte { return PutNumber(make([]byte, 4, 8), uint32(i)) }
	for i := range count {
		if r.Count() != i {
			t.Fatalf("%d records, want %d", r.Count(), i)
		}
		r.add(key(i), data(i), "")
	}
	n := 0
	for e := range r.All() {
		if !bytes.Equal(e.Key, key(n)) || !bytes.Equal(e.Data, data(n)) || r.Find(key(n)) != n {
			t.Fatalf("record %d is %v: %v", n, e.Key, e.Data)
		}
		n++
	}
	if n != count || r.Find(key(count)) != -1 {
		t.Errorf("%d records, want %d", n, count)
	}
}
