package peers

import "fmt"

// A target is how many times better than kube-proxy svcproxy is to be.
type target struct {
	mode    string
	size    size
	measure measure
	times   float64
}

var targets = []target{
	{nftables, size{10_000, 10}, firstSync, 30},
	{nftables, size{10_000, 10}, firstStart, 30},
	{nftables, size{10_000, 10}, oneChange, 50},
	{nftables, size{10_000, 10}, memoryRest, 4}, // a quarter
	{legacy, size{10_000, 10}, firstSync, 4},
	{iptNFT, size{1_000, 10}, firstSync, 10},
}

// A verdict is what becomes of a target.
type verdict string

const (
	met        verdict = "met"
	missed     verdict = "missed"
	unmeasured verdict = "not measured"
	undecided  verdict = "not decided" // what took too long was ended before that was known
)

// A ratio is how many times better svcproxy is; below 1: worse.
type ratio struct {
	value float64 // 0: not measured
	least bool    // it is at least that
	most  bool    // it is at most that
}

func ratioOf(m measure, ours, theirs figure) ratio {
	switch {
	case ours.rounds == 0 || theirs.rounds == 0 || ours.value <= 0 || theirs.value <= 0 || ours.over && theirs.over:
		return ratio{}
	case m.rate():
		return ratio{value: ours.value / theirs.value}
	}
	return ratio{theirs.value / ours.value, theirs.over, ours.over}
}

func (r ratio) String() string {
	text := fmt.Sprintf("%.3g", r.value)
	if r.value >= 100 {
		text = fmt.Sprintf("%.0f", r.value)
	}
	switch {
	case r.value == 0:
		return "–"
	case r.least:
		return "over " + text
	case r.most:
		return "under " + text
	}
	return text
}

// judge compares a target with what was measured.
func (r *report) judge(t target) (ratio, verdict) {
	got := ratioOf(t.measure, r.figure(t.mode, t.size, ours, t.measure), r.figure(t.mode, t.size, theirs, t.measure))
	switch {
	case got.value == 0:
		return got, unmeasured
	case got.value >= t.times && !got.most:
		return got, met
	case got.value < t.times && !got.least:
		return got, missed
	}
	return got, undecided
}
