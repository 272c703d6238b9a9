package decode

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// numbered repeats a unit, which has a verb for a number.
func numbered(n int, unit string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, unit, i)
	}
	return b.String()
}

// A table of more keys than any can have is one fault, and so is a text of more tables.
func TestTooManyKeysAreOneFault(t *testing.T) {
	const top, table = "the text has more than 1000 keys and tables at the top", "a table has more than 196605 keys"
	for _, tt := range []struct {
		name, text string
		isJSON     bool
		want       string
	}{
		{"keys", numbered(1000, "k%d=1       \n"), false, ""},
		{"one more key", numbered(1001, "k%d=1       \n"), false, "a:1001:6: " + top},
		{"tables", numbered(1000, "[k%d]             \n"), false, ""},
		{"one more table", numbered(500, "[k%d]             \n") + numbered(501, "[[l%d]]           \n"), false, "a:1001:7: " + top},
		{"tables of one list", "a = 1\n" + strings.Repeat("[[services]]\nname = 'a'\n", 3000), false, ""},
		{"members", `{"a": 1` + numbered(999, `, "k%d": 1`) + "}", true, ""},
		{"one more member", `{"a": 1` + numbered(1000, `, "k%d": 1`) + "}", true, "a:1:10895: " + top},
		{"keys of a table", "[t]\n" + numbered(maxKeys, "k%d=1\n"), false, ""},
		{"one more key of a table", "[t]\n" + numbered(maxKeys+1, "k%d=1\n"), false, "a:196607:8: " + table},
		{"one more key of an inline table", "t = {" + strings.TrimSuffix(numbered(maxKeys+1, "k%d=1,"), ",") + "}", false, "a:1:1854953: " + table},
		{"one more member of an object", `{"t": {"a": 1` + numbered(maxKeys, `, "k%d": 1`) + "}}", true, "a:1:2641371: " + table},
		{"of two tables", "[t]\n" + numbered(maxKeys/2+1, "k%d=1\n") + "[u]\n" + numbered(maxKeys/2+1, "k%d=1\n"), false, ""},
	} {
		parse := TOML
		if tt.isJSON {
			parse = JSON
		}
		_, faults := parse("a", []byte(tt.text))
		got := ""
		if len(faults) > 0 {
			got = faults[0].String()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A million keys cost what it takes to find that there are too many.
func TestMillionKeysAreRefusedCheaply(t *testing.T) {
	cost := func(text string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = TOML("a.toml", []byte(text))
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if text := numbered(1_000_000, "k%d=1\n"); cost(text) > 4*uint64(len(text)) {
		t.Errorf("%d bytes take %d", len(text), cost(text))
	}
}

// Where a thousand faults stand costs one way through the text, in whatever order they were found.
func TestFaultsFarApart(t *testing.T) {
	d, faults := JSON("a", []byte(`{"a": "`+strings.Repeat("x", 8<<20)+`",`+"\n"+`"b": "`+strings.Repeat("x", 8<<20)+`", "c": 1}`))
	if faults != nil {
		t.Fatal(faults)
	}
	r := NewReader(nil)
	for i := range maxFaults {
		r.FaultAt(source.At([]string{"a", "c"}[i%2]), "", "")
	}
	begun := time.Now()
	out := r.Faults(d)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if first, last := out[0].String(), out[maxFaults-1].String(); first != "a:1:7: " || last != "a:2:8388623: " {
		t.Errorf("the first is at %q, the last at %q", first, last)
	}
}
