//go:build !race

package costs

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what operations cost")

const file = "testdata/costs.json"

// A book is what operations cost, by their names.
type book struct {
	Go    string // whose compiler and library allocate
	Costs map[string]cost
}

// A cost is what one operation takes.
type cost struct {
	Allocs float64
	Bytes  float64        // allocated
	Sends  map[string]int `json:",omitempty"` // to the kernel
}

// An operation is measured as the mean of several runs. Each run gets the next number. The first and the last run have an
// even and an odd one, so that every other run can take back what its predecessor did.
type operation struct {
	name  string
	runs  int // even
	do    func(run int)
	sends func(run int) map[string]int // what a run and the one that takes it back send; nil: nothing
}

// margin is the part of a cost by which it may differ: maps place their keys by a random seed, and goroutines wait for one
// another in any order. Ten runs of one program beside busy processes, at a load of 15 on two processors, differed by 0.0001
// of the allocations and 0.0013 of the bytes of a start, and by less elsewhere. So one allocation more for each change, or for
// each service of a start, is beyond it. Releases of Go may differ by more.
var margin = struct{ allocs, bytes float64 }{0.002, 0.01}

func TestCosts(t *testing.T) {
	known, err := load()
	if err != nil && !*update {
		t.Fatal(err)
	}
	got := book{runtime.Version(), map[string]cost{}}
	for _, op := range operations(t) {
		c := op.measure()
		got.Costs[op.name] = c
		t.Logf("%s: %.1f allocations, %.0f bytes, %v", op.name, c.Allocs, c.Bytes, c.Sends)
		if differs := known.Costs[op.name].compare(c); differs != "" && !*update {
			t.Errorf("%s: %s; if that is meant, run go test ./test/costs -update (written by %s, this is %s)", op.name, differs, known.Go, got.Go)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known.Costs)) {
		if _, ok := got.Costs[name]; !ok && !*update {
			t.Errorf("%s has no operation %q; run go test ./test/costs -update", file, name)
		}
	}
	if *update {
		check(t, got.save())
	}
}

// measure runs the operation on one processor: on several, work is split up in as many parts.
func (op *operation) measure() cost {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	op.do(0) // what is made once
	op.do(1)
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties pools
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for run := range op.runs {
		op.do(run + 2)
	}
	runtime.ReadMemStats(&after)
	each := func(before, after uint64) float64 { return math.Round(float64(after-before)/float64(op.runs)*10) / 10 }
	c := cost{Allocs: each(before.Mallocs, after.Mallocs), Bytes: each(before.TotalAlloc, after.TotalAlloc)}
	if op.sends != nil {
		c.Sends = op.sends(op.runs + 2)
		for what, n := range op.sends(op.runs + 3) {
			c.Sends[what] += n
		}
	}
	return c
}

// compare returns how another cost differs; empty: not beyond the margin.
func (c cost) compare(is cost) string {
	var differs []string
	for _, v := range []struct {
		what             string
		was, is, allowed float64
	}{
		{"allocations", c.Allocs, is.Allocs, max(margin.allocs*c.Allocs, 0.5)},
		{"bytes", c.Bytes, is.Bytes, max(margin.bytes*c.Bytes, 32)},
	} {
		if math.Abs(v.is-v.was) > v.allowed {
			differs = append(differs, fmt.Sprintf("%.1f %s, were %.1f", v.is, v.what, v.was))
		}
	}
	if !maps.Equal(c.Sends, is.Sends) {
		differs = append(differs, fmt.Sprintf("sends %v, sent %v", is.Sends, c.Sends))
	}
	return strings.Join(differs, ", ")
}

// load returns the costs that are written down; none where there is no file.
func load() (b book, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(data, &b)
}

func (b book) save() error {
	data, err := json.MarshalIndent(b, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// A change of each figure beyond its margin is found, and none within it.
func TestCompare(t *testing.T) {
	was := cost{Allocs: 10, Bytes: 1000, Sends: map[string]int{"messages": 2}}
	for _, tt := range []struct {
		is   cost
		same bool
	}{
		{was, true},
		{cost{10.4, 1030, was.Sends}, true},
		{cost{11, 1000, was.Sends}, false},
		{cost{9, 1000, was.Sends}, false},
		{cost{10, 1040, was.Sends}, false},
		{cost{10, 960, was.Sends}, false},
		{cost{10, 1000, map[string]int{"messages": 1}}, false},
		{cost{10, 1000, nil}, false},
	} {
		if differs := was.compare(tt.is); (differs == "") != tt.same {
			t.Errorf("%v after %v: %s", tt.is, was, differs)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
