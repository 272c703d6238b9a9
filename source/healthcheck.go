package source

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// A CheckType says how an endpoint is asked whether it is alive.
type CheckType uint8

// The types of a HealthCheck.
const (
	CheckTCP   CheckType = iota + 1 // connect, and where Send or Expect is given, talk
	CheckHTTP                       // one request
	CheckHTTPS                      // one request over TLS
	CheckGRPC                       // the health protocol of gRPC
	CheckUDP                        // send, and expect an answer
	CheckExec                       // run a program
)

// CheckTypes are the words for the types, in the order of the types from 1 on.
var CheckTypes = []string{"tcp", "http", "https", "grpc", "udp", "exec"}

func (t CheckType) String() string {
	if t < 1 || int(t) > len(CheckTypes) {
		return "none"
	}
	return CheckTypes[t-1]
}

// A CheckResult says whether an endpoint is alive, as its health check has it.
type CheckResult uint8

// CheckUnknown: no answer yet. CheckPassed, CheckFailed: as the last row of answers that was long enough decided.
const (
	CheckUnknown CheckResult = iota
	CheckPassed
	CheckFailed
)

// String returns the word that status has for it.
func (r CheckResult) String() string { return [...]string{"unknown", "passed", "failed"}[r] }

// A HealthCheck says how endpoints are asked whether they are alive, and what their
// answers mean. It is never changed, and may be shared by services.
type HealthCheck struct {
	Type CheckType
	Port uint16 // 0: the one under which the endpoint serves the first port of the service that it serves

	// Of HTTP and HTTPS.
	Path, Method, Host string // empty Host: the endpoint
	ExpectStatus       []StatusRange
	ExpectBody         string // RE2, looked for in the first 64 KiB; empty: any

	// Of HTTPS, and of GRPC with TLS.
	TLS        bool   // of GRPC; HTTPS has it always
	ServerName string // empty: Host
	Insecure   bool   // the certificate is not verified
	MinTLS     TLSVersion

	GRPCService string // of GRPC; empty: the whole server

	// Of TCP and UDP: bytes to send, and RE2 that the answer must match; empty: nothing, anything.
	Send, Expect string

	Command []string // of Exec: the program and its arguments
	Barred  string   // of Exec: why the program must not run, in words that may be shown; empty: it may

	Interval     time.Duration // between two questions, from the beginning of the one to that of the next
	IntervalDown time.Duration // the same while the endpoint is down
	Timeout      time.Duration // of one question
	Rise, Fall   uint8         // results in a row that bring it up, and down
	Source       netip.Addr    // own address to ask from; invalid: as the kernel chooses

	Refuse bool // all_failed = "refuse": connections are refused when all fail, rather than sent to all
}

// A TLSVersion is the oldest version of TLS that a check uses.
type TLSVersion uint8

// AnyTLS is 1.0 where the certificate is not verified, else 1.2.
const (
	AnyTLS TLSVersion = iota
	TLS10
	TLS11
	TLS12
	TLS13
)

func (v TLSVersion) String() string { return [...]string{"", "1.0", "1.1", "1.2", "1.3"}[v] }

// A StatusRange is a range of HTTP status codes.
type StatusRange struct{ First, Last uint16 }

// Has reports whether the range includes a status.
func (r StatusRange) Has(status int) bool { return int(r.First) <= status && status <= int(r.Last) }

// String returns the range as files write it: 200, or 200-399.
func (r StatusRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Equal reports whether two checks ask the same and mean the same by the answers. Either may be nil.
func (c *HealthCheck) Equal(o *HealthCheck) bool {
	if c == nil || o == nil || c == o {
		return c == o
	}
	return c.SameQuestion(o) &&
		c.Interval == o.Interval && c.IntervalDown == o.IntervalDown && c.Rise == o.Rise && c.Fall == o.Fall &&
		c.Refuse == o.Refuse
}

// SameQuestion reports whether two checks ask an endpoint the same thing in the same way.
func (c *HealthCheck) SameQuestion(o *HealthCheck) bool {
	return c.Type == o.Type && c.Port == o.Port &&
		c.Path == o.Path && c.Method == o.Method && c.Host == o.Host &&
		slices.Equal(c.ExpectStatus, o.ExpectStatus) && c.ExpectBody == o.ExpectBody &&
		c.TLS == o.TLS && c.ServerName == o.ServerName && c.Insecure == o.Insecure && c.MinTLS == o.MinTLS &&
		c.GRPCService == o.GRPCService && c.Send == o.Send && c.Expect == o.Expect &&
		slices.Equal(c.Command, o.Command) && c.Barred == o.Barred && c.Timeout == o.Timeout && c.Source == o.Source
}

// A CloseConnections says which established connections are closed when their endpoint
// gets no new ones.
type CloseConnections uint8

// CloseNever: none. CloseFailed: those of an endpoint whose check fails. CloseAlways:
// also those of one that was removed, or drained until its deadline.
const (
	CloseNever CloseConnections = iota
	CloseFailed
	CloseAlways
)

func (c CloseConnections) String() string {
	return [...]string{"never", "failed", "always"}[c]
}

// EndpointAt returns an endpoint's address, with the port under which it serves the first port
// of the service that it serves; port 0: it serves none. It names the endpoint in the service:
// what is known of it beside its file is known of the place.
func (s *Service) EndpointAt(e *Endpoint) netip.AddrPort {
	for _, p := range s.Ports {
		if n := e.Port(p); n != 0 {
			return netip.AddrPortFrom(e.Addr, n)
		}
	}
	return netip.AddrPortFrom(e.Addr, 0)
}

// AskedAt returns where the health check of the service asks about an endpoint.
func (s *Service) AskedAt(e *Endpoint) netip.AddrPort {
	return netip.AddrPortFrom(e.Addr, cmp.Or(s.HealthCheck.Port, s.EndpointAt(e).Port()))
}
