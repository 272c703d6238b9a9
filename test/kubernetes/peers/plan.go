package peers

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Environment variables that make a run another than the whole one, whose results alone
// go to docs/.
const (
	envSizes  = "SVCPROXY_PEERS_SIZES"  // of each mode: 1000x10,20000x5
	envRounds = "SVCPROXY_PEERS_ROUNDS" // of each size
	envBound  = "SVCPROXY_PEERS_BOUND"  // of each thing that is waited for: 10m
	envRested = "SVCPROXY_PEERS_RESTED" // in how many rounds memory at rest is measured
	envDir    = "SVCPROXY_PEERS_DIR"    // where results are kept
)

// Modes, by whose rules are written.
const (
	nftables = "nftables"
	iptNFT   = "iptables-nft"
	legacy   = "iptables-legacy"
)

var modes = []string{nftables, iptNFT, legacy}

// A size is how many services there are, and how many endpoints each has.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// alone reports whether the size is for svcproxy alone.
func (s size) alone() bool { return s.services >= 100_000 }

// peers returns who is measured with the size, in the order of turns.
func (s size) peers() []string {
	if s.alone() {
		return []string{ours, oursFiles}
	}
	return []string{ours, oursFiles, theirs}
}

// largest are the most services and endpoints that addresses are set aside for.
var largest = size{200_000, 50}

func parseSize(text string) (size, error) {
	services, endpoints, _ := strings.Cut(text, "x")
	n, err := strconv.Atoi(services)
	e, err2 := strconv.Atoi(endpoints)
	if err = cmp.Or(err, err2); err != nil {
		return size{}, fmt.Errorf("size %q: want services x endpoints, as 1000x10: %w", text, err)
	}
	if n < 3 || e < 1 || n > largest.services || e > largest.endpoints || n*e > 2_000_000 {
		return size{}, fmt.Errorf("size %q: want 3 to %d services of 1 to %d endpoints, at most 2000000 of them", text, largest.services, largest.endpoints)
	}
	return size{n, e}, nil
}

// A plan is what a run measures, and how.
type plan struct {
	sizes   map[string][]size // by mode
	rounds  int
	large   int           // rounds of sizes above usual
	changes int           // of one endpoint, in each round
	rested  int           // rounds that wait until memory is at rest, with the usual size
	rest    time.Duration // how long that takes
	calm    time.Duration // how long each round waits for an idle machine
	bound   time.Duration // of each thing that is waited for
	dir     string        // where results are kept
	whole   bool          // as it stands here: its results are for docs/
}

// usual is the size that most targets are of. Memory at rest is measured with it alone, and
// there are fewer rounds above it, where one of kube-proxy takes more than five minutes.
var usual = size{10_000, 10}

// roundsOf returns how many rounds there are of a size.
func (p *plan) roundsOf(s size) int {
	if s.services > usual.services {
		return p.large
	}
	return p.rounds
}

// restedOf returns in how many of them memory at rest is measured: with a size of its own in all modes.
func (p *plan) restedOf(s size) int {
	if p.whole && s != usual {
		return 0
	}
	return p.rested
}

// wholePlan is what make bench-peers measures.
func wholePlan() *plan {
	return &plan{
		sizes: map[string][]size{
			nftables: {{1_000, 10}, {10_000, 10}, {20_000, 5}, {100_000, 10}},
			iptNFT:   {{1_000, 10}, {10_000, 10}},
			legacy:   {{1_000, 10}, {10_000, 10}},
		},
		rounds: 5, large: 3, changes: 5, rested: 1,
		rest:  130 * time.Second, // Go collects garbage every 2 minutes at the latest
		calm:  time.Minute,
		bound: 10 * time.Minute,
		dir:   "../../../docs/bench", whole: true,
	}
}

// planFrom changes the whole plan as environment variables say.
func planFrom(env func(string) string) (*plan, error) {
	p := wholePlan()
	for _, v := range []struct {
		name string
		set  func(string) error
	}{
		{envSizes, p.setSizes},
		{envRounds, p.setRounds},
		{envRested, func(text string) error { return number(text, &p.rested) }},
		{envBound, p.setBound},
		{envDir, func(text string) error { p.dir = text; return nil }},
	} {
		text := env(v.name)
		if text == "" {
			continue
		}
		if v.name != envRested { // that only adds to it
			p.whole, p.dir = false, cmp.Or(env(envDir), "../../../dist/bench")
		}
		if err := v.set(text); err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return p, nil
}

func (p *plan) setSizes(text string) error {
	var all []size
	for word := range strings.SplitSeq(text, ",") {
		s, err := parseSize(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, m := range modes {
		p.sizes[m] = all
	}
	return nil
}

func (p *plan) setRounds(text string) error {
	err := number(text, &p.rounds)
	p.large = p.rounds
	return err
}

func (p *plan) setBound(text string) (err error) {
	if p.bound, err = time.ParseDuration(text); err == nil && (p.bound < time.Second || p.bound > 24*time.Hour) {
		err = fmt.Errorf("%s: want 1s to 24h", text)
	}
	return err
}

// number reads 0 to 100.
func number(text string, to *int) error {
	n, err := strconv.Atoi(text)
	if err == nil && (n < 0 || n > 100) {
		err = fmt.Errorf("%d: want 0 to 100", n)
	}
	*to = n
	return err
}

// fromEnvironment is the plan of this process.
func fromEnvironment() (*plan, error) { return planFrom(os.Getenv) }
