package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// An Outcome is what became of a packet, as its sender sees it.
type Outcome uint8

// The outcomes.
const (
	Answered  Outcome = iota // by a server of the lab
	Untouched                // not translated by node, which sent it on: gateway answered
	Refused                  // at once
	Dropped                  // no answer at all
	Broken                   // the sender itself could not send
)

func (o Outcome) String() string {
	return [...]string{"answered", "untouched", "refused", "dropped", "broken"}[o]
}

// An Answer is what came of one question.
type Answer struct {
	Outcome Outcome

	// Of one that was answered.
	By     string     // the role of the host
	Port   uint16     // under which its server was reached
	Source netip.Addr // the client's address as the server saw it
	Resent bool       // of TCP: a SYN was lost and sent again
	Local  uint16     // the client's port

	Err error // why not, if not
}

func (a Answer) String() string {
	switch {
	case a.Outcome == Answered:
		return fmt.Sprintf("answered by %s:%d, which saw %s", a.By, a.Port, a.Source)
	case a.Err != nil:
		return fmt.Sprintf("%s (%v)", a.Outcome, a.Err)
	}
	return a.Outcome.String()
}

// parseAnswer reads what a server says of itself.
func parseAnswer(line string) Answer {
	var a Answer
	var source string
	if _, err := fmt.Sscan(line, &a.By, &a.Port, &source); err != nil {
		return Answer{Outcome: Broken, Err: fmt.Errorf("reading answer %q: %w", line, err)}
	}
	a.Source, a.Err = netip.ParseAddr(strings.TrimSpace(source))
	switch {
	case a.Err != nil:
		a.Outcome = Broken
	case a.By == "gateway":
		a.Outcome = Untouched
	}
	return a
}

// failed is the answer that an error of a socket stands for.
func failed(err error) Answer {
	outcome := Broken
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		outcome = Dropped
	case isRefusal(err):
		outcome = Refused
	}
	return Answer{Outcome: outcome, Err: err}
}

// isRefusal reports whether err is how a socket reports a TCP reset or an ICMP error.
func isRefusal(err error) bool {
	for _, errno := range []unix.Errno{
		unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.ENOPROTOOPT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// isOwnFirewall reports whether err is how a host learns that its own firewall
// dropped or refused a packet that it sent. Only a refusal is followed by an ICMP
// error, which the next read tells.
func isOwnFirewall(err error) bool { return errors.Is(err, unix.EPERM) }
