package control

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/source"
)

// Where drains are asked about, and changed.
const (
	DrainPath   = "/v1/drain"      // POST a Drain, answers a DrainAnswer; GET: a list of them
	UndrainPath = "/v1/undrain"    // POST a Drain of which only the target counts, answers an Undrained
	LeftPath    = "/v1/drain/left" // GET with a target as TargetKey, answers a Remaining
	TargetKey   = "target"         // of the query
)

// MinDrain and MaxDrain bound the timeout of a drain.
const (
	MinDrain = time.Second
	MaxDrain = 7 * 24 * time.Hour
)

// Drain is the question of a POST to DrainPath. What is drained already is drained as before,
// except for what is given.
type Drain struct {
	Target  conditions.DrainTarget `json:"target"`
	Reason  string                 `json:"reason,omitempty"`
	Timeout time.Duration          `json:"timeout,omitempty"`  // in ns, from now; 0: not given
	NoLimit bool                   `json:"no_limit,omitempty"` // the timeout that was given before does not apply any more
}

// Check returns why it cannot be drained so.
func (q *Drain) Check() error {
	if n := len(source.Printable(q.Reason)); n > conditions.MaxReason {
		return fmt.Errorf("the reason has %d bytes; want %d at most", n, conditions.MaxReason)
	}
	if q.Timeout != 0 && (q.Timeout < MinDrain || q.Timeout > MaxDrain) {
		return fmt.Errorf("timeout %s; want %s to %s", q.Timeout, MinDrain, MaxDrain)
	}
	return nil
}

// DrainAnswer answers a Drain.
type DrainAnswer struct {
	conditions.Drained
	Heard  []string `json:"heard,omitempty"`         // of this host: where load balancers hear it
	Marked int      `json:"marked_routes,omitempty"` // of this host: that routers are told to leave, and are withdrawn next
}

// maxHeard is how many places String names.
const maxHeard = 3

// HeardLine says where load balancers hear that this host is drained.
func (a *DrainAnswer) HeardLine() string {
	if len(a.Heard) == 0 {
		return "no load balancer hears of it: http_address is not listened on, and there is no health check node port"
	}
	text := "503 is answered by: " + source.Printable(strings.Join(a.Heard[:min(len(a.Heard), maxHeard)], ", "))
	if more := len(a.Heard) - maxHeard; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// RoutesLine says what routers have been told; empty: nothing.
func (a *DrainAnswer) RoutesLine() string {
	if a.Marked == 0 {
		return ""
	}
	return fmt.Sprintf("%s by BGP: marked with GRACEFUL_SHUTDOWN now, withdrawn within %s", Counted(a.Marked, "route"), announcer.ShutdownTime)
}

// Undrained answers a question to UndrainPath: the drain is over.
type Undrained struct {
	Target conditions.DrainTarget `json:"target"`
	Still  []conditions.Drained   `json:"still,omitempty"` // other drains of that address, MaxStill at most
	More   int                    `json:"more,omitempty"`  // than Still
}

// MaxStill is how many drains an Undrained names.
const MaxStill = 3

// String says it on lines.
func (u *Undrained) String() string {
	if len(u.Still) == 0 {
		return TargetName(u.Target) + " is not drained any more"
	}
	text := "the drain of " + TargetName(u.Target) + " is over"
	for _, d := range u.Still {
		text += because(fmt.Sprintf("\nstill drained: %s by %s", d.Target, source.Printable(d.By)), source.Printable(d.Reason))
	}
	if u.More > 0 {
		text += fmt.Sprintf("\nand %s more, see svcproxy drain", Counted(u.More, "drain"))
	}
	return text
}

// Remaining is what a drain still waits for.
type Remaining struct {
	Drained  bool          `json:"drained"` // it is not over
	Until    time.Time     `json:"until,omitzero"`
	Unknown  string        `json:"unknown,omitempty"` // why what follows is not known now
	Looked   time.Time     `json:"looked,omitzero"`   // when what follows began to be counted; an answer may be given again
	Services []RemainingIn `json:"services"`          // that have connections; sorted
}

// RemainingIn is what a service still has at what is drained.
type RemainingIn struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Connections int    `json:"connections"` // of TCP and SCTP
	Flows       int    `json:"flows"`       // of UDP
}

// None reports whether it is known that nothing is left.
func (l *Remaining) None() bool { return l.Unknown == "" && len(l.Services) == 0 }

// maxLeftNames is how many services String names.
const maxLeftNames = 3

// String says it on a line: "41 connections, 3 UDP flows: default/web 40, prod/db 4".
func (l *Remaining) String() string {
	if l.Unknown != "" {
		return "not known: " + source.Printable(l.Unknown)
	}
	connections, flows := 0, 0
	var names []string
	for _, s := range slices.SortedStableFunc(slices.Values(l.Services), func(a, b RemainingIn) int { return cmp.Compare(b.Connections+b.Flows, a.Connections+a.Flows) }) {
		connections, flows = connections+s.Connections, flows+s.Flows
		names = append(names, fmt.Sprintf("%s/%s %d", s.Namespace, s.Name, s.Connections+s.Flows))
	}
	if len(names) == 0 {
		return "nothing"
	}
	var kinds []string
	if connections > 0 {
		kinds = append(kinds, Counted(connections, "connection"))
	}
	if flows > 0 {
		kinds = append(kinds, Counted(flows, "UDP flow"))
	}
	text := strings.Join(kinds, ", ") + ": " + strings.Join(names[:min(len(names), maxLeftNames)], ", ")
	if more := len(names) - maxLeftNames; more > 0 {
		text += fmt.Sprintf(" and %s more", Counted(more, "service"))
	}
	return text
}

// DrainedLine says that something is drained, as of now.
func DrainedLine(d *conditions.Drained, now time.Time) string {
	text := TargetName(d.Target) + " is drained: no new connections"
	if d.Target.Node {
		text = TargetName(d.Target) + " is drained: /healthz and health check node ports say 503"
	}
	if !d.Until.IsZero() {
		text += "; time left for established ones: " + timeLeft(now, d.Until)
	}
	return text
}

// WriteDrains writes drains for people, as of now.
func WriteDrains(w io.Writer, list []conditions.Drained, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing is drained")
		return err
	}
	t := newTable(w, now)
	t.row("TARGET", "REASON", "USER", "SINCE", "TIME LEFT")
	for _, d := range list {
		t.row(d.Target.String(), cmp.Or(d.Reason, "-"), cmp.Or(d.By, "-"), Age(now, d.At), timeLeft(now, d.Until))
	}
	return t.end()
}

// timeLeft says how long it is to a deadline, which may be zero.
func timeLeft(now, until time.Time) string {
	switch {
	case until.IsZero():
		return "no limit"
	case !until.After(now):
		return "over for " + Age(now, until)
	}
	return Age(until, now)
}
