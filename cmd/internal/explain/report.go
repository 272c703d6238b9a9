package explain

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Report is the walk of a packet.
type Report struct {
	Question Question   `json:"question"`
	Works    bool       `json:"works"`
	Verdict  string     `json:"verdict"`
	Outcome  string     `json:"outcome"`             // what a new connection meets, if nothing foreign stands in its way
	Service  string     `json:"service,omitempty"`   // namespace/name
	Expected []Expected `json:"endpoints,omitempty"` // who may answer
	Steps    []Step     `json:"steps"`
	Problems []Problem  `json:"problems,omitempty"` // what stands in its way, the first one first
}

// What svcproxy does with a new connection. Listed: no port was asked for.
const (
	Balanced  = "balanced"
	Refused   = "refused"
	Dropped   = "dropped"
	Untouched = "untouched"
	Listed    = "listed"
)

// An Expected is an endpoint that may answer.
type Expected struct {
	Address    netip.AddrPort `json:"address"`
	Share      float64        `json:"share"` // of new connections, 0 to 1
	Masquerade bool           `json:"masquerade"`
	Source     netip.Addr     `json:"source,omitzero"`   // that it sees, as far as it is known
	Blocked    bool           `json:"blocked,omitempty"` // a problem keeps connections from it
}

// A Step is one part of the walk.
type Step struct {
	Number int      `json:"number"`
	Name   string   `json:"name"`
	Lines  []string `json:"lines"`
}

// The steps.
const (
	serviceStep = iota + 1
	sourceStep
	choiceStep
	kernelStep
	routeStep
	hostStep
)

var stepNames = [...]string{serviceStep: "service", sourceStep: "source", choiceStep: "choice", kernelStep: "kernel", routeStep: "route", hostStep: "host"}

// A Problem stands in a packet's way, or may do so.
type Problem struct {
	Step     int              `json:"step"`
	Text     string           `json:"text"`
	Hint     string           `json:"hint,omitempty"`
	Sure     bool             `json:"sure"`                // false: it may
	Endpoint []netip.AddrPort `json:"endpoints,omitempty"` // that it concerns; empty: all
	order    int              // in which the packet meets it
}

// The order in which a packet meets what may stand in its way.
const (
	leaveOrder = iota + 1
	earlyOrder
	ownOrder
	reverseOrder
	forwardOrder
	routeOrder
	filterOrder
	backOrder
	unreadOrder
)

// maxLines is how many lines a step has at most, maxEndpoints of how many endpoints the
// way is looked at.
const (
	maxLines     = 64
	maxEndpoints = 32
)

// addLine adds a line to a step: judge has made all of them.
func (r *Report) addLine(step int, format string, args ...any) {
	s := &r.Steps[step-serviceStep]
	s.Lines = append(s.Lines, fmt.Sprintf(format, args...))
}

// addProblem notes a problem, once for all endpoints that have it, and reports whether it is the first.
func (r *Report) addProblem(p Problem) bool {
	for i := range r.Problems {
		if o := &r.Problems[i]; o.Step == p.Step && o.Text == p.Text && o.Sure == p.Sure {
			o.Endpoint = append(o.Endpoint, p.Endpoint...)
			return false
		}
	}
	r.Problems = append(r.Problems, p)
	return true
}

// addStop notes a problem that certainly stands in the way: to all endpoints, or to some.
func (r *Report) addStop(step, order int, text, hint string, to ...netip.AddrPort) bool {
	return r.addProblem(Problem{Step: step, Text: text, Hint: hint, Sure: true, order: order, Endpoint: to})
}

// Write writes the report as text. Whatever it holds, it adds no control characters.
func (r *Report) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, s := range r.Steps {
		for i, line := range s.Lines {
			head := fmt.Sprintf("%d %-9s", s.Number, s.Name)
			if i > 0 {
				head = strings.Repeat(" ", len(head))
			}
			fmt.Fprintf(b, "%s %s\n", head, source.Printable(line))
		}
	}
	fmt.Fprintf(b, "%-11s %s\n", "verdict", source.Printable(r.Verdict))
	return b.Flush()
}
