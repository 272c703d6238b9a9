package healthcheck

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// An outcome is what came of a probe.
type outcome uint8

const (
	passed outcome = iota
	failed
	timedOut
	notAsked // because of this host itself
	outcomes
)

var outcomeWords = [outcomes]string{"passed", "failed", "timeout", "not_asked"}

// bounds of the buckets of durations, in seconds: 1 ms to 16 s.
var bounds = [...]float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}

// Answers counts the probes of one type with one outcome, by how long they took.
type Answers struct {
	Type    string // one of source.CheckTypes
	Outcome string // "passed", "failed", "timeout", or "not_asked": this host could not ask
	Count   uint64
	Sum     float64            // of durations, in seconds
	Buckets map[float64]uint64 // by upper bound in seconds: how many took no longer
}

// A tally is one of Answers as it is counted.
type tally struct {
	count   uint64
	sum     time.Duration
	buckets [len(bounds)]uint64 // not cumulative
}

// tallies are all of them. The type CheckTCP is first.
type tallies [6][outcomes]tally

func (t *tallies) add(of source.CheckType, o outcome, took time.Duration) {
	one := &t[of-1][o]
	one.count++
	one.sum += took
	if i, _ := slices.BinarySearch(bounds[:], took.Seconds()); i < len(bounds) {
		one.buckets[i]++
	}
}

func (t *tallies) answers() []Answers {
	var all []Answers
	for i := range t {
		for o := range outcomes {
			all = append(all, t[i][o].answers(source.CheckTypes[i], outcomeWords[o]))
		}
	}
	return all
}

func (t *tally) answers(of, o string) Answers {
	a := Answers{Type: of, Outcome: o, Count: t.count, Sum: t.sum.Seconds(), Buckets: make(map[float64]uint64, len(bounds))}
	var sum uint64
	for i, le := range bounds {
		sum += t.buckets[i]
		a.Buckets[le] = sum
	}
	return a
}
