package trace

import (
	"fmt"
	"io"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Line is what became of one new connection.
type Line struct {
	Time        time.Time `json:"time"` // when its packet was seen
	Source      string    `json:"source"`
	Destination string    `json:"destination"`         // "10.96.0.10:80/tcp"; "10.96.0.10/icmp"
	Interface   string    `json:"interface,omitempty"` // where it came in; empty: of this host itself
	Service     string    `json:"service,omitempty"`
	Port        string    `json:"port,omitempty"` // its name
	Verdict     Verdict   `json:"verdict"`
	Endpoint    string    `json:"endpoint,omitempty"`
	Node        string    `json:"node,omitempty"` // of the endpoint
	Masquerade  string    `json:"masqueraded_as,omitempty"`
	Why         string    `json:"why,omitempty"`
	Chains      []string  `json:"chains,omitempty"`
}

// A Verdict is what this host did with a packet, as it was seen to.
type Verdict string

// Balanced: sent to an endpoint. Refused: answered by a reset or an ICMP error. Dropped:
// neither; by a rule of svcproxy where Why has its reason. Untouched: passed on with the
// address that it was sent to. Untracked: hidden from connection tracking, and so from
// every service. Unknown: events were lost.
const (
	Balanced  Verdict = "balanced"
	Refused   Verdict = "refused"
	Dropped   Verdict = "dropped"
	Untouched Verdict = "untouched"
	Untracked Verdict = "untracked"
	Unknown   Verdict = "unknown"
)

// Header is the first line of a trace for people.
const Header = "TIME          SOURCE                 DESTINATION              SERVICE               VERDICT"

// WriteTo writes l for people. Nothing in it can steer a terminal.
func (l *Line) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s  %-21s  %-23s  %-20s  %s\n", l.Time.Format("15:04:05.000"), source.Printable(l.Source),
		source.Printable(l.Destination), source.Printable(l.service()), source.Printable(l.outcome()))
	for _, c := range l.Chains {
		if err == nil {
			_, err = fmt.Fprintf(w, "              %s\n", source.Printable(c))
		}
	}
	return err
}

func (l *Line) service() string {
	switch {
	case l.Service == "":
		return "-"
	case l.Port == "":
		return l.Service
	}
	return l.Service + ":" + l.Port
}

// outcome is the verdict in words.
func (l *Line) outcome() string {
	text := string(l.Verdict)
	if l.Verdict == Balanced && l.Endpoint != "" { // else only the endpoint itself knows
		text += " to " + l.Endpoint
		if l.Node != "" {
			text += " on " + l.Node
		}
		if l.Masquerade != "" {
			text += ", masqueraded as " + l.Masquerade
		}
	}
	if l.Why != "" {
		text += ": " + l.Why
	}
	return text
}
