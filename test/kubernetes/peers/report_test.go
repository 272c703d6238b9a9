package peers

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exampleReport has figures for one size, of which kube-proxy's first sync took too long.
func exampleReport(over bool) *report {
	p := wholePlan()
	p.sizes = map[string][]size{nftables: {{10_000, 10}, {100_000, 10}}}
	r := &report{p, map[string]*cell{}}
	put := func(peer string, rounds ...round) {
		c := newCell(nftables, size{10_000, 10}, peer, subject{Version: "v1", Machine: "a machine"})
		c.Rounds = rounds
		r.cells[keyOf(nftables, c.size(), peer)] = c
	}
	values := func(sync, memory, rate float64) round {
		return round{Values: map[measure]float64{firstSync: sync, memoryRest: memory, rateLast: rate}}
	}
	put(ours, values(0.5, 100<<20, 30_000), values(0.1, 90<<20, 40_000), values(0.2, 110<<20, 20_000))
	if over {
		put(theirs, round{Over: map[measure]float64{firstSync: 4}})
	} else {
		put(theirs, values(8, 300<<20, 15_000), values(6, 300<<20, 15_000))
	}
	return r
}

func TestKubernetesPeersVerdicts(t *testing.T) {
	for _, c := range []struct {
		over   bool
		target target
		ratio  string
		want   verdict
	}{
		{false, target{nftables, size{10_000, 10}, firstSync, 30}, "35", met}, // medians 7 and 0.2
		{false, target{nftables, size{10_000, 10}, firstSync, 36}, "35", missed},
		{false, target{nftables, size{10_000, 10}, memoryRest, 4}, "3", missed},
		{false, target{nftables, size{10_000, 10}, rateLast, 2}, "2", met},
		{false, target{nftables, size{10_000, 10}, oneChange, 50}, "–", unmeasured},
		{false, target{legacy, size{10_000, 10}, firstSync, 4}, "–", unmeasured},
		{true, target{nftables, size{10_000, 10}, firstSync, 20}, "over 20", met},
		{true, target{nftables, size{10_000, 10}, firstSync, 30}, "over 20", undecided},
	} {
		got, what := exampleReport(c.over).judge(c.target)
		if got.String() != c.ratio || what != c.want {
			t.Errorf("%v, over %v: %s, %s; want %s, %s", c.target, c.over, got, what, c.ratio, c.want)
		}
	}
}

func TestKubernetesPeersTable(t *testing.T) {
	text := exampleReport(false).markdown()
	for _, line := range []string{
		"Medians of 2 to 3 rounds of kube-proxy v1 and svcproxy v1 on a machine.",
		"| nftables, 10,000 services of 10 endpoints: first sync | 30 | 35 | met |",
		"| nftables, 10,000 services of 10 endpoints: memory at rest | 4 | 3 | missed |",
		"| iptables-nft, 1,000 services of 10 endpoints: first sync | 10 | – | not measured |",
		"### nftables, 10,000 services of 10 endpoints",
		"| first sync | 200 ms | – | 7 s | 35 |",
		"| memory at rest | 100 MiB | – | 300 MiB | 3 |",
		"| connections a second, last service | 30,000 | – | 15,000 | 2 |",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the report lacks %q:\n%s", line, text)
		}
	}
	if strings.Contains(text, "100,000 services") {
		t.Error("there is a table of what was not measured")
	}
	if text := exampleReport(true).markdown(); !strings.Contains(text, "| first sync | 200 ms | – | over 4 s | over 20 |\n") {
		t.Errorf("what took too long is not said:\n%s", text)
	}
}

func TestKubernetesPeersUnits(t *testing.T) {
	for value, want := range map[float64]string{0: "0 s", 22.4e-6: "22.4 µs", 1.7e-3: "1.7 ms", 0.304: "304 ms", 1: "1 s", 12.34: "12.3 s", 600: "600 s", 1234.5: "1234 s"} {
		if got := seconds(value); got != want {
			t.Errorf("%g s: %s, want %s", value, got, want)
		}
	}
	for n, want := range map[int]string{5: "5", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// A picture is well formed, and has a bar of each figure.
func TestKubernetesPeersPlots(t *testing.T) {
	for _, over := range []bool{false, true} {
		text := plot{"x.svg", "Times & sizes", firstSync}.svg(exampleReport(over))
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
		}
		if strings.Contains(text, "%!") {
			t.Errorf("a number is missing:\n%s", text)
		}
		want := []string{"200 ms", "7 s", "nftables, 10,000 × 10", "Times &amp; sizes"}
		if over {
			want[1] = "over 4 s"
		}
		for _, w := range want {
			if !strings.Contains(text, ">"+w+"<") {
				t.Errorf("the picture lacks %q:\n%s", w, text)
			}
		}
	}
	none := &report{wholePlan(), map[string]*cell{}}
	if text := plots[0].svg(none); !strings.HasSuffix(text, "</svg>\n") || !strings.Contains(text, ">10 s<") {
		t.Errorf("a picture without figures:\n%s", text)
	}
}

// Results survive the end of a run; a round that took too long is the last; those of
// another program are not taken for this one's.
func TestKubernetesPeersStore(t *testing.T) {
	s := store{filepath.Join(t.TempDir(), "new")}
	if c, err := s.load(nftables, size{20, 3}, ours); c != nil || err != nil {
		t.Fatalf("nothing is kept yet: %v, %v", c, err)
	}
	of := subject{Version: "v1", Program: "abc", Machine: "m", Method: methodVersion}
	c := newCell(nftables, size{20, 3}, ours, of)
	c.Rounds = []round{{Values: map[measure]float64{firstSync: 1.5}, Over: map[measure]float64{}}}
	if err := s.save(c); err != nil {
		t.Fatal(err)
	}
	got, err := s.load(nftables, size{20, 3}, ours)
	if err != nil || got.Rounds[0].Values[firstSync] != 1.5 || got.Subject != of || got.complete(2) || !got.complete(1) {
		t.Fatalf("kept: %+v, %v", got, err)
	}
	p := &plan{sizes: map[string][]size{nftables: {{20, 3}}}}
	for _, other := range []struct {
		peer    string
		subject subject
		want    int // cells of the report
	}{
		{oursFiles, of, 2},
		{oursFiles, subject{Program: "abd", Machine: "m", Method: methodVersion}, 1},
		{theirs, subject{Program: "abd", Machine: "m", Method: methodVersion}, 2},
		{theirs, subject{Program: "abd", Machine: "n", Method: methodVersion}, 1},
	} {
		c := newCell(nftables, size{20, 3}, other.peer, other.subject)
		if err := s.save(c); err != nil {
			t.Fatal(err)
		}
		if r, err := s.report(p); err != nil || len(r.cells) != other.want {
			t.Errorf("a report with %s of %+v: %+v, %v; want %d cells", other.peer, other.subject, r, err, other.want)
		}
	}
	if got.slow(firstSync) {
		t.Error("a second and a half is slow")
	}
	if got.Rounds[0].Values[firstSync] = 61; !got.slow(firstSync) || got.slow(restart) {
		t.Error("a minute is not slow, or what was not measured is")
	}
	got.Rounds[0].Over = map[measure]float64{restart: 600}
	if !got.complete(5) {
		t.Error("what took too long is to be tried again")
	}
	if err := os.WriteFile(s.path(nftables, size{20, 3}, ours), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(nftables, size{20, 3}, ours); err == nil {
		t.Error("a file that is broken is read")
	}
	for other, want := range map[subject]bool{
		{Version: "v2", Program: "abc", Machine: "m", Method: methodVersion}: false,
		{Version: "v1", Program: "abd", Machine: "m", Method: methodVersion}: true,
		{Version: "v1", Program: "abc", Machine: "n", Method: methodVersion}: true,
		{Version: "v1", Program: "abc", Machine: "m", Method: 0}:             true,
	} {
		if of.differs(other) != want {
			t.Errorf("%+v and %+v: want differs %v", of, other, want)
		}
	}
}

// The page of docs takes results in place of earlier ones, and keeps the rest.
func TestKubernetesPeersPage(t *testing.T) {
	text, err := os.ReadFile("../../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	first, err := insert(text, "one")
	if err != nil {
		t.Fatal(err)
	}
	second, err := insert(first, "two")
	if err != nil || strings.Contains(string(second), "\none\n") || strings.Count(string(second), "\ntwo\n") != 1 {
		t.Errorf("results are not replaced: %v\n%s", err, second)
	}
	if back, err := insert(second, "one"); err != nil || string(back) != string(first) {
		t.Errorf("the rest of the page is not the same: %v", err)
	}
	if _, err := insert([]byte("# Page\n"), "x"); err == nil {
		t.Error("a page without a place takes results")
	}
}
