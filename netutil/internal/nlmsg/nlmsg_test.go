package nlmsg_test

import (
	"bytes"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// encoded returns attributes 1, a number, and 2, which holds 3, a text.
func encoded(t testing.TB) []byte {
	e := netlink.NewAttributeEncoder()
	e.Uint16(1|unix.NLA_F_NET_BYTEORDER, 0x0102)
	e.Nested(2, func(e *netlink.AttributeEncoder) error {
		e.String(3, "text")
		return nil
	})
	b, err := e.Encode()
	fatal.If(t, err)
	return b
}

func TestFind(t *testing.T) {
	b := encoded(t)
	if got := nlmsg.String(nlmsg.Find(b, 2, 3)); got != "text" {
		t.Errorf("got %q, want %q", got, "text")
	}
	if got := nlmsg.Find(b, 1); len(got) != 2 {
		t.Errorf("attribute 1 has %d bytes, want 2", len(got))
	}
	for _, path := range [][]uint16{{3}, {1, 3}, {2, 4}} {
		if got := nlmsg.Find(b, path...); got != nil {
			t.Errorf("path %v: got %v, want none", path, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { nlmsg.Find(b, 2, 3) }); n != 0 {
		t.Errorf("Find allocates %v times", n)
	}
}

func TestAttrsEndWhereOneDoesNotFit(t *testing.T) {
	b := encoded(t)
	types := func(b []byte) (list []uint16) {
		for typ, a := range nlmsg.Attrs(b) {
			if a.IsNested() != (typ == 2) {
				t.Errorf("attribute %d: nested is %v", typ, a.IsNested())
			}
			list = append(list, typ)
		}
		return list
	}
	if got := types(b); len(got) != 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("got types %v, want 1 and 2", got)
	}
	if got := types(b[:len(b)-1]); len(got) != 1 {
		t.Errorf("got types %v of a list that is cut off, want 1", got)
	}
}

func TestNumbersThatAreCutOffAreZero(t *testing.T) {
	b := []byte{1, 2, 3, 4}
	if got := nlmsg.Uint8(b[:1]) + nlmsg.Uint8(nil); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
	if got := nlmsg.Uint16(b) + nlmsg.Uint16(b[:1]); got != 0x0102 {
		t.Errorf("got %#x, want 0x0102", got)
	}
	if got := nlmsg.Uint32(b) + nlmsg.Uint32(b[:3]) + nlmsg.NativeUint32(b[:3]); got != 0x01020304 {
		t.Errorf("got %#x, want 0x01020304", got)
	}
}

// Whatever comes from a socket, nothing beyond it is read.
func FuzzEach(f *testing.F) {
	b := encoded(f)
	whole := append([]byte{byte(unix.NLMSG_HDRLEN + len(b)), 0, 0, 0, unix.NLMSG_ERROR, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0}, b...)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	long := bytes.Clone(whole)
	long[unix.NLMSG_HDRLEN] = 0xff
	f.Add(long)
	f.Fuzz(func(t *testing.T, b []byte) {
		received := bytes.Clone(b)
		err := nlmsg.Each(b[:len(b):len(b)], func(m nlmsg.Message) error {
			if m.IsLast() {
				_ = m.Errno()
			}
			_, _ = nlmsg.Find(m.Body, 1), nlmsg.Find(m.Body, 2, 3)
			for _, a := range nlmsg.Attrs(m.Body) {
				_ = append(a, 0xff) // is beyond it
			}
			return nil
		})
		if err != nil && err != nlmsg.ErrTruncated {
			t.Errorf("got error %v", err)
		}
		if !bytes.Equal(b, received) {
			t.Error("what was received has changed")
		}
	})
}
