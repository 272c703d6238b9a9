package keep

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

// Cut off anywhere, the index gives what its whole lines say.
func TestIndexCutOff(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 0, 0, 500, time.UTC)
	a, b := Record{read.IDOf([]byte("a"), nil), at, at.Add(time.Hour)}, Record{read.IDOf([]byte("b"), nil), at, at}
	lines := []string{indexHeader, a.encode("a.toml"), b.encode("b\n.json"), Record{}.encode("a.toml"), a.encode("\xff.toml")}
	want := []map[string]Record{{}, {"a.toml": a}, {"a.toml": a, "b\n.json": b}, {"b\n.json": b}, {"b\n.json": b, "\xff.toml": a}}
	text := strings.Join(lines, "")
	whole := 0 // lines, without the header
	for n := len(indexHeader); n <= len(text); n++ {
		if n == len(strings.Join(lines[:whole+1], "")) {
			whole++
		}
		cut := n != len(strings.Join(lines[:whole], ""))
		got, _, damaged := parseIndex([]byte(text[:n]))
		if fmt.Sprint(got) != fmt.Sprint(want[whole-1]) || damaged > 0 != cut {
			t.Fatalf("cut off after %d bytes: %v, %d damaged\nwant %v", n, got, damaged, want[whole-1])
		}
	}
}

// The name of a copy has that of its file or text, cannot lead out of the directory, and is of no other.
func TestCopyNamesOfTexts(t *testing.T) {
	var sum [32]byte
	long := "https://config.example.net/" + strings.Repeat("x", 300) + ".toml"
	names := []string{
		"web.toml", "https:%2F%2Fh%2Fweb.toml", "https://h/web.toml", "https://h//web.toml", "https://h/web.json", "https://h/a/../web.toml",
		"https://h/%2e%2e/web.toml", "https://h/a%2Fweb.toml", "https://h/a/web.toml", "etcd:/svcproxy/services/web.toml", long, long + ".toml",
	}
	of := map[string]string{}
	for _, name := range names {
		c := copyName(name, sum)
		if other, taken := of[c]; taken {
			t.Errorf("%s and %s are both kept as %s", name, other, c)
		}
		if of[c] = name; strings.Contains(c, "/") || len(c) > read.MaxName || !isCopy.MatchString(c) {
			t.Errorf("%s is kept as %s", name, c)
		}
		got := nameOf(copyStem(name))
		if want := name; len(name) < 300 && got != want || len(name) >= 300 && read.IsServiceFile(got) {
			t.Errorf("%s is found again as %s", name, got)
		}
	}
	if got, want := copyName("https://h/web.toml", sum), ".https:%2F%2Fh%2Fweb.000000000000.toml"; got != want {
		t.Errorf("copy %s, want %s", got, want)
	}
}

// A damaged line is left out, and no other.
func TestDamagedIndexLineIsLeftOut(t *testing.T) {
	r := Record{read.IDOf([]byte("a"), nil), time.Unix(1, 0), time.Unix(2, 0)}
	good := r.encode("a.toml")
	for i := range len(good) - 1 {
		for _, flip := range []byte{0x01, 0x20, 0x80} {
			bad := []byte(good)
			bad[i] ^= flip
			got, _, damaged := parseIndex([]byte(indexHeader + string(bad) + r.encode("b.toml")))
			if bad[i] == '\n' {
				continue // two lines
			}
			if len(got) != 1 || got["b.toml"].Sum != r.Sum || damaged != 1 {
				t.Errorf("%q gives %v, %d damaged", bad, got, damaged)
			}
		}
	}
	for _, name := range []string{"../a.toml", "a/b.toml", ".a.toml", "svcproxy.toml", "a\x00.toml", "a.txt", ""} {
		if _, _, ok := parseRecord(r.encode(name)); ok {
			t.Errorf("the name %q is taken", name)
		}
	}
	for _, data := range []string{"", "svcproxy lastgood 2\n", "\x00\x00\x00"} {
		if got, _, damaged := parseIndex([]byte(data)); len(got) != 0 || damaged == 0 {
			t.Errorf("%q gives %v, %d damaged", data, got, damaged)
		}
	}
}

func TestCopyNames(t *testing.T) {
	sum := read.IDOf([]byte("a 1\n"), nil)
	for _, tt := range []struct{ name, want string }{
		{"web.toml", "web.6a03830a1811.toml"},
		{"a.b.json", "a.b.6a03830a1811.json"},
		{strings.Repeat("x", 237) + ".toml", strings.Repeat("x", 237) + ".6a03830a1811.toml"},
		{strings.Repeat("x", 238) + ".toml", ".HASH.6a03830a1811.toml"},
	} {
		got := copyName(tt.name, sum)
		if len(got) > read.MaxName || !isCopy.MatchString(got) {
			t.Errorf("copyName(%q) = %q", tt.name, got)
		}
		if strings.HasPrefix(got, ".") {
			got = ".HASH" + got[1+64:]
		}
		if got != tt.want {
			t.Errorf("copyName(%q) = %q; want %q", tt.name, got, tt.want)
		}
	}
}
