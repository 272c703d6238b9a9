package ipvs

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

const here bootrecord.Scope = "boot 1, network namespace cookie 1"

func tcp(addrPort string) lvs.Key {
	at := netip.MustParseAddrPort(addrPort)
	return lvs.Key{Addr: at.Addr(), Protocol: uint8(source.TCP), Port: at.Port()}
}

// open reads the record of dir, as a start of the program does.
func open(t rapid.TB, dir string, where bootrecord.Scope) *record {
	t.Helper()
	r, damaged, err := readRecord(dir, policy.IPv4, where)
	if err != nil || damaged > 0 {
		t.Fatalf("%d damaged lines, %v", damaged, err)
	}
	return r
}

func flush(t rapid.TB, r *record) {
	t.Helper()
	fatal.If(t, r.flush())
}

// keys returns n of them.
func keys(n int) (list []lvs.Key) {
	for i := range n {
		list = append(list, tcp(fmt.Sprintf("10.96.%d.%d:80", i/250, i%250)))
	}
	return list
}

func wantSame(t rapid.TB, got, want *record) {
	t.Helper()
	if !maps.Equal(got.owned, want.owned) || !bytes.Equal(got.lines(), want.lines()) || got.live != want.live {
		t.Errorf("read back (%d):\n%s\nwant (%d):\n%s", got.live, got.lines(), want.live, want.lines())
	}
}

func TestRecordComesBack(t *testing.T) {
	dir := t.TempDir() + "/not/yet"
	r := open(t, dir, here)
	key := lvs.Key{Addr: netip.MustParseAddr("2001:db8::1"), Protocol: uint8(source.SCTP), Port: 30080}
	at := netip.MustParseAddrPort("10.0.0.1:80")
	since := time.Now().Round(0)
	r.own(key)
	r.own(tcp("192.0.2.1:80"))
	r.drained(drainChange{key, at, since})
	flush(t, r)
	back := open(t, dir, here)
	if got, ok := back.drains[key][at]; !back.owns(key) || !ok || !got.Equal(since) {
		t.Errorf("read back %s", back.lines())
	}
	wantSame(t, back, r)
	if other, _, err := readRecord(dir, policy.IPv6, here); err != nil || len(other.owned) > 0 {
		t.Errorf("the other family reads %s, %v", other.lines(), err)
	}
	back.drained(drainChange{key: key, at: at})
	back.disown(key)
	back.disown(tcp("192.0.2.1:80"))
	flush(t, back)
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("files for nothing: %v", left)
	}
}

// What was made in another boot or another namespace is not here, and nothing of
// a file that a power loss left without its contents is ours.
func TestRecordsFromElsewhereAreVoid(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	r.own(tcp("10.96.0.1:80"))
	flush(t, r)
	for _, where := range []bootrecord.Scope{"boot 2, network namespace cookie 1", "boot 1, network namespace cookie 12"} {
		if got := open(t, dir, where); got.live > 0 {
			t.Errorf("%s: inherits %s", where, got.lines())
		}
	}
	text, err := os.ReadFile(r.file.Path())
	fatal.If(t, err)
	for _, data := range [][]byte{make([]byte, len(text)), nil, []byte("{\"servers\":[]}"), text[:bytes.IndexByte(text, '\n')]} {
		fatal.If(t, os.WriteFile(r.file.Path(), data, 0o600))
		got := open(t, dir, here)
		if got.live > 0 {
			t.Errorf("%q gives %s", data, got.lines())
		}
		got.own(tcp("10.96.0.2:80"))
		flush(t, got)
		wantSame(t, open(t, dir, here), got)
	}
}

// A cleanup in the wrong namespace takes nothing from the right one.
func TestCleanupElsewhereLeavesTheRecord(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	r.own(tcp("10.96.0.1:80"))
	flush(t, r)
	other := open(t, dir, "boot 1, network namespace cookie 2")
	fatal.If(t, other.clear())
	wantSame(t, open(t, dir, here), r)
	fatal.If(t, r.clear())
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// Wherever a write is cut off, whole lines count and the next write is whole.
func TestTornWrites(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	r.own(tcp("10.96.0.1:80"))
	flush(t, r)
	first, err := os.ReadFile(r.file.Path())
	fatal.If(t, err)
	before := len(first)
	r.own(tcp("10.96.0.2:8080"))
	r.disown(tcp("10.96.0.1:80"))
	flush(t, r)
	text, err := os.ReadFile(r.file.Path())
	fatal.If(t, err)
	for n := before; n <= len(text); n++ {
		fatal.If(t, os.WriteFile(r.file.Path(), text[:n], 0o600))
		got := open(t, dir, here)
		lines := bytes.Count(text[before:n], []byte("\n"))
		if got.owns(tcp("10.96.0.1:80")) != (lines < 2) || got.owns(tcp("10.96.0.2:8080")) != (lines > 0) {
			t.Fatalf("of %q it reads %s", text[:n], got.lines())
		}
		got.own(tcp("10.96.0.3:80"))
		flush(t, got)
		wantSame(t, open(t, dir, here), got)
	}
}

// Lines that make no sense are counted, and the others hold.
func TestDamagedLines(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	r.own(tcp("10.96.0.1:80"))
	flush(t, r)
	bad := []string{"", "own", "own tcp", "own icmp 10.96.0.9:80", "own tcp 10.96.0.9", "gone tcp 10.96.0.1:80 more", "drain tcp 10.96.0.1:80 10.0.0.1:80 yesterday", "\x00\x00"}
	f, err := os.OpenFile(r.file.Path(), os.O_APPEND|os.O_WRONLY, 0)
	fatal.If(t, err)
	fmt.Fprintf(f, "%s\nown tcp 10.96.0.2:80\n", strings.Join(bad, "\n"))
	f.Close()
	got, damaged, err := readRecord(dir, policy.IPv4, here)
	if err != nil || damaged != len(bad) {
		t.Errorf("%d damaged lines, %v, want %d", damaged, err, len(bad))
	}
	if !got.owns(tcp("10.96.0.1:80")) || !got.owns(tcp("10.96.0.2:80")) || got.live != 2 {
		t.Errorf("read %s", got.lines())
	}
	got.own(tcp("10.96.0.3:80"))
	flush(t, got)
	wantSame(t, open(t, dir, here), got)
}

// The servers of a first sync are one write, a change adds its own lines, and a
// file that many changes went through stays in proportion to what it says.
func TestRecordIsAppendedAndCompacted(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	all := keys(2000)
	for _, k := range all {
		r.own(k)
	}
	if _, err := os.Stat(r.file.Path()); err == nil {
		t.Error("written before it was asked for")
	}
	flush(t, r)
	file := func() os.FileInfo {
		info, err := os.Stat(r.file.Path())
		fatal.If(t, err)
		return info
	}
	first := file()
	r.disown(all[0])
	flush(t, r)
	if grown := file().Size() - first.Size(); !os.SameFile(first, file()) || grown > 100 {
		t.Errorf("a change of one server wrote a new file (%v) or %d bytes", !os.SameFile(first, file()), grown)
	}
	for range 5000 {
		r.own(all[0])
		flush(t, r)
		r.disown(all[0])
		flush(t, r)
	}
	if n := file().Size(); n > 3*first.Size() {
		t.Errorf("%d bytes after many changes, at first %d", n, first.Size())
	}
	wantSame(t, open(t, dir, here), r)
}

// A file that was changed or removed meanwhile is rewritten.
func TestRecordFileIsGone(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	for i, damage := range []func() error{
		func() error { return nil },
		func() error { return os.Remove(r.file.Path()) },
		func() error { return os.WriteFile(r.file.Path(), []byte("x\n"), 0o600) },
		func() error { return os.RemoveAll(dir) },
	} {
		fatal.If(t, damage())
		r.own(keys(10)[i])
		flush(t, r)
		wantSame(t, open(t, dir, here), r)
	}
}

// What could not be written is not forgotten: the next write says all.
func TestUnwritableRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r := open(t, dir, here)
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the directory should be
		t.Fatal(err)
	}
	r.own(tcp("10.96.0.1:80"))
	if err := r.flush(); err == nil {
		t.Fatal("no error")
	}
	fatal.If(t, os.Remove(dir))
	r.own(tcp("10.96.0.2:80"))
	flush(t, r)
	wantSame(t, open(t, dir, here), r)
	if open(t, dir, here).live != 2 {
		t.Error("something was forgotten")
	}
}

// Nor does it take another change: a server that is gone must not stay ours in a
// file that could not be written when it went.
func TestUnwritableRecordIsWrittenByTheNextFlush(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, here)
	r.own(tcp("10.96.0.1:80"))
	r.own(tcp("10.96.0.2:80"))
	flush(t, r)
	fatal.If(t, os.Rename(r.file.Path(), r.file.Path()+".moved"))
	if err := os.Mkdir(r.file.Path(), 0o700); err != nil { // nothing can be put in its place
		t.Fatal(err)
	}
	r.disown(tcp("10.96.0.1:80"))
	for range 2 {
		if err := r.flush(); err == nil {
			t.Error("no error")
		}
	}
	fatal.If(t, os.Remove(r.file.Path()))
	fatal.If(t, os.Rename(r.file.Path()+".moved", r.file.Path()))
	flush(t, r)
	wantSame(t, open(t, dir, here), r)
}

// However it is changed, what is read back is what was written.
func TestRecordIsReadAsWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "svcproxy-record-")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r := open(rt, dir, here)
		all := keys(4)
		for range rapid.IntRange(1, 40).Draw(rt, "changes") {
			k := rapid.SampledFrom(all).Draw(rt, "key")
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 3).Draw(rt, "destination"))}), 80)
			switch rapid.IntRange(0, 5).Draw(rt, "change") {
			case 0, 1:
				r.own(k)
			case 2:
				r.disown(k)
			case 3:
				r.drained(drainChange{k, at, time.Unix(int64(rapid.IntRange(1, 9).Draw(rt, "since")), 5)})
			case 4:
				r.drained(drainChange{key: k, at: at})
			case 5:
				flush(rt, r)
			}
		}
		flush(rt, r)
		wantSame(rt, open(rt, dir, here), r)
	})
}
