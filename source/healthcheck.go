package source

import (
	"fmt"
	"net/netip"
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
// answers mean. It is never changed, and may be shared by services. Its tags are those of keyedBy.
type HealthCheck struct {
	Type CheckType `key:"type"`
	Port uint16    `key:"port"` // 0: the one under which the endpoint serves the first port of the service that it serves

	// Of HTTP and HTTPS.
	Path         string        `key:"path"`
	Method       string        `key:"method"`
	Host         string        `key:"host"` // empty: the endpoint
	ExpectStatus []StatusRange `key:"expect_status"`
	ExpectBody   string        `key:"expect_body"` // RE2, looked for in the first 64 KiB; empty: any

	// Of HTTPS, and of GRPC with TLS.
	TLS        bool       `key:"tls"`         // of GRPC; HTTPS has it always
	ServerName string     `key:"server_name"` // empty: Host
	Insecure   bool       `key:"!verify"`     // the certificate is not verified
	MinTLS     TLSVersion `key:"min_tls"`

	GRPCService string `key:"service"` // of GRPC; empty: the whole server

	// Of TCP and UDP: bytes to send, and RE2 that the answer must match; empty: nothing, anything.
	Send   string `key:"send"`
	Expect string `key:"expect"`

	Command []string `key:"command"` // of Exec: the program and its arguments
	Barred  string   `key:"barred"`  // of Exec: why the program must not run, in words that may be shown; empty: it may

	Interval     time.Duration `key:"interval"`      // between two questions, from the beginning of the one to that of the next
	IntervalDown time.Duration `key:"interval_down"` // the same while the endpoint is down
	Timeout      time.Duration `key:"timeout"`       // of one question
	Rise         uint8         `key:"rise"`          // results in a row that bring it up
	Fall         uint8         `key:"fall"`          // and down
	Source       netip.Addr    `key:"source"`        // own address to ask from; invalid: as the kernel chooses

	Refuse bool `key:"all_failed"` // all_failed = "refuse": connections are refused when all fail, rather than sent to all
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

func (v TLSVersion) String() string { return wordOf(v, "", "1.0", "1.1", "1.2", "1.3") }

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
	return wordOf(c, "never", "failed", "always")
}
