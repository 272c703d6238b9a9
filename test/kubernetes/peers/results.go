package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Who is measured.
const (
	ours      = "svcproxy"       // reads the server
	oursFiles = "svcproxy-files" // reads files
	theirs    = "kube-proxy"
)

// A measure is something that is measured once in a round.
type measure string

const (
	firstSync   measure = "first sync"
	firstStart  measure = "first sync, from the start of the process"
	firstCPU    measure = "processor time until then"
	oneChange   measure = "one endpoint of one service changed"
	oneCPU      measure = "processor time of that"
	manyChanges measure = "1 % of services changed"
	manyCPU     measure = "processor time of those"
	restart     measure = "restart, from the start of the process"
	restartCPU  measure = "processor time of the restart"
	memoryRest  measure = "memory at rest"
	memoryPeak  measure = "memory at the peak"
	memoryTools measure = "memory at the peak, of it or a tool that it runs"

	latencyFirst  measure = "connect, first service"
	latencyMiddle measure = "connect, middle service"
	latencyLast   measure = "connect, last service"
	rateFirst     measure = "connections a second, first service"
	rateMiddle    measure = "connections a second, middle service"
	rateLast      measure = "connections a second, last service"
)

// measures are all of them, in the order of the tables.
var measures = []measure{
	firstSync, firstStart, firstCPU, oneChange, oneCPU, manyChanges, manyCPU, restart, restartCPU, memoryRest, memoryPeak, memoryTools,
	latencyFirst, latencyMiddle, latencyLast, rateFirst, rateMiddle, rateLast,
}

// bytes reports whether a measure is of memory; the others are in seconds, or a second.
func (m measure) bytes() bool { return m == memoryRest || m == memoryPeak || m == memoryTools }

// rate reports whether more of it is better.
func (m measure) rate() bool { return m == rateFirst || m == rateMiddle || m == rateLast }

// A round is what was measured of one process.
type round struct {
	Values map[measure]float64 `json:"values"`         // seconds, bytes, or times a second
	Over   map[measure]float64 `json:"over,omitempty"` // what took longer than these seconds, and was ended
	Load   float64             `json:"load"`           // average of the minute before
}

// A cell is all rounds of one program with one size in one mode.
type cell struct {
	Mode, Peer          string
	Services, Endpoints int

	Subject subject
	Rounds  []round
}

// A subject is what results hold for: those of another one are measured again.
type subject struct {
	Version string // for readers: two programs of one version may differ
	Program string // hash of the file
	Machine string // kernel and processors
	Method  int    // methodVersion
}

// programOf returns the program that a peer is.
func programOf(peer string) string { return strings.TrimSuffix(peer, "-files") }

// differs reports whether results of one do not hold for the other.
func (s subject) differs(other subject) bool {
	s.Version, other.Version = "", ""
	return s != other
}

// beside reports whether results of two programs may stand in one table.
func (s subject) beside(other subject, sameProgram bool) bool {
	return s.Machine == other.Machine && s.Method == other.Method && (!sameProgram || s.Program == other.Program)
}

// methodVersion counts the changes of what is measured.
const methodVersion = 1

func newCell(mode string, s size, peer string, of subject) *cell {
	return &cell{Mode: mode, Peer: peer, Services: s.services, Endpoints: s.endpoints, Subject: of}
}

func (c *cell) size() size { return size{c.Services, c.Endpoints} }

// complete reports whether a cell needs no more rounds. What took too long once would do so again.
func (c *cell) complete(rounds int) bool {
	return len(c.Rounds) >= rounds || slices.ContainsFunc(c.Rounds, func(r round) bool { return len(r.Over) > 0 })
}

// with returns how many rounds have a measure.
func (c *cell) with(m measure) (n int) {
	for _, r := range c.Rounds {
		if _, ok := r.Values[m]; ok {
			n++
		}
	}
	return n
}

// slow reports whether a measure took so long that once is enough.
func (c *cell) slow(m measure) bool {
	return slices.ContainsFunc(c.Rounds, func(r round) bool { return r.Values[m] > slowTime.Seconds() })
}

// slowTime is a minute: five restarts of kube-proxy with 20,000 services would take forty.
const slowTime = time.Minute

// A figure is the median of a measure over all rounds.
type figure struct {
	value  float64
	over   bool // it is more than value, and nobody knows how much
	rounds int  // 0: not measured
}

func (c *cell) figure(m measure) figure {
	if c == nil {
		return figure{}
	}
	var values []float64
	for _, r := range c.Rounds {
		if limit, ok := r.Over[m]; ok {
			return figure{limit, true, len(c.Rounds)}
		}
		if v, ok := r.Values[m]; ok {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return figure{}
	}
	return figure{value: median(values), rounds: len(values)}
}

// median returns the middle of values, the mean of two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// A store keeps cells in files of a folder.
type store struct{ dir string }

func (s store) path(mode string, of size, peer string) string {
	return filepath.Join(s.dir, fmt.Sprintf("peers-%s-%s-%s.json", mode, of, peer))
}

// load returns what is kept of a cell; nil: nothing.
func (s store) load(mode string, of size, peer string) (*cell, error) {
	text, err := os.ReadFile(s.path(mode, of, peer))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading earlier results: %w", err)
	}
	c := new(cell)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("reading earlier results: %s: %w", s.path(mode, of, peer), err)
	}
	return c, nil
}

// save keeps a cell, so that a run that ends here leaves it whole.
func (s store) save(c *cell) error {
	text, err := json.MarshalIndent(c, "", "\t")
	if err == nil {
		err = os.MkdirAll(s.dir, 0o755)
	}
	path := s.path(c.Mode, c.size(), c.Peer)
	if err == nil {
		err = replaceFile(path, text)
	}
	if err != nil {
		return fmt.Errorf("keeping results: %w", err)
	}
	return nil
}

// replaceFile writes a file whole, or not at all.
func replaceFile(path string, text []byte) error {
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(fresh, text, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// A report has all cells of a plan that there are.
type report struct {
	plan  *plan
	cells map[string]*cell // by keyOf
}

func keyOf(mode string, s size, peer string) string { return fmt.Sprintf("%s %s %s", mode, s, peer) }

// report returns what there is, each size of the build that it was measured of last.
func (s store) report(p *plan) (*report, error) {
	r := &report{p, map[string]*cell{}}
	for _, m := range modes {
		for _, size := range p.sizes[m] {
			if err := r.load(s, m, size); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// load adds what goes with the first program of a size.
func (r *report) load(s store, mode string, of size) error {
	var first *cell
	for _, peer := range of.peers() {
		c, err := s.load(mode, of, peer)
		if err != nil {
			return err
		}
		if c == nil || first != nil && !c.Subject.beside(first.Subject, programOf(peer) == programOf(first.Peer)) {
			continue
		}
		if first == nil {
			first = c
		}
		r.cells[keyOf(mode, of, peer)] = c
	}
	return nil
}

func (r *report) figure(mode string, s size, peer string, m measure) figure {
	return r.cells[keyOf(mode, s, peer)].figure(m)
}
