package source

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The range of the times of a HealthCheck, and the longest Service.SlowStart.
const (
	MinCheckTime = 100 * time.Millisecond
	MaxCheckTime = time.Hour
	MaxSlowStart = time.Hour
)

// Bounds of what a HealthCheck holds, in bytes, unless said otherwise.
const (
	maxCheckText = 1024 // of a path, of Send, of a regular expression, of an argument
	MaxArguments = 64   // of Command, the program included
	MaxStatuses  = 64   // ranges in ExpectStatus

	// maxProgram is the size of a regular expression as it is run, in states. A search may
	// take as many steps for each byte that it looks at.
	maxProgram = 2000
)

// A checkValidator looks for what is wrong with a check alone.
type checkValidator struct {
	*HealthCheck
	problems
}

// ValidateCheck returns what is wrong with a check, whatever service it is of, at paths in the
// check. One without a type has not been read, and has no problems. What a check
// without problems other than warnings has can be put into a request or a command line.
func ValidateCheck(c *HealthCheck) []Problem {
	if c.Type == 0 {
		return nil
	}
	v := checkValidator{HealthCheck: c}
	v.times()
	v.source()
	switch c.Type {
	case CheckHTTP, CheckHTTPS:
		v.http()
		v.serverName()
	case CheckGRPC:
		v.grpc()
		v.serverName()
	case CheckTCP, CheckUDP:
		v.talk()
	case CheckExec:
		v.command()
	}
	return v.problems
}

func (v *checkValidator) times() {
	for _, t := range []struct {
		key string
		is  time.Duration
	}{{"interval", v.Interval}, {"interval_down", v.IntervalDown}, {"timeout", v.Timeout}} {
		if t.is < MinCheckTime || t.is > MaxCheckTime {
			v.fault(At(t.key), fmt.Sprintf("%s is %s", t.key, t.is), "want 100ms to 1h")
			return
		}
	}
	if v.Timeout > v.Interval {
		v.warn(At("timeout"), fmt.Sprintf("timeout %s is more than interval %s", v.Timeout, v.Interval),
			"an endpoint that does not answer is asked only every timeout")
	}
	for _, n := range []struct {
		key string
		is  uint8
	}{{"rise", v.Rise}, {"fall", v.Fall}} {
		if n.is == 0 {
			v.fault(At(n.key), n.key+" is 0", "want 1 to 255")
		}
	}
}

func (v *checkValidator) source() {
	if !v.Source.IsValid() {
		return
	}
	if why := Unusable(v.Source); why != "" {
		v.fault(At("source"), fmt.Sprintf("source %s is %s", v.Source, why), "want an address of this host")
	}
}

func (v *checkValidator) http() {
	switch _, err := url.ParseRequestURI(v.Path); {
	case !strings.HasPrefix(v.Path, "/"):
		v.fault(At("path"), "the path "+Excerpt(v.Path)+` does not begin with "/"`, "")
	case len(v.Path) > maxCheckText:
		v.fault(At("path"), fmt.Sprintf("the path has %d bytes", len(v.Path)), fmt.Sprintf("want %d at most", maxCheckText))
	case err != nil || strings.ContainsFunc(v.Path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }):
		v.fault(At("path"), "the path "+Excerpt(v.Path)+" cannot be asked for", "write blanks, # and what is not ASCII as % and two hexadecimal digits, such as %20")
	}
	if v.Method == "" || len(v.Method) > 20 || strings.Trim(v.Method, upperCase) != "" {
		v.fault(At("method"), Excerpt(v.Method)+" is not a method", "want one in capital letters, such as GET or HEAD")
	}
	if v.Host != "" && !isHost(v.Host) {
		v.fault(At("host"), Excerpt(v.Host)+" is not a host", hostHint(v.Host))
	}
	v.statuses()
	if v.Method == "HEAD" && v.ExpectBody != "" {
		v.fault(At("expect_body"), "the answer to HEAD has no body to match expect_body", "use GET")
	}
	v.expression("expect_body", v.ExpectBody)
}

const upperCase = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// isHost reports whether s can be the Host of a request: a name or an address, and a port if it has one.
func isHost(s string) bool {
	if name, port, found := strings.Cut(s, ":"); !strings.HasPrefix(s, "[") {
		return IsName(name) && (!found || isPort(port))
	}
	address, port, found := strings.Cut(s[1:], "]")
	a, err := netip.ParseAddr(address)
	return err == nil && a.Is6() && a.Zone() == "" && found && (port == "" || port[0] == ':' && isPort(port[1:]))
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func hostHint(s string) string {
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() && a.Zone() == "" {
		return fmt.Sprintf("write %q", "["+s+"]")
	}
	return "want a name or an address, and behind a colon the port if it is to be sent"
}

func (v *checkValidator) statuses() {
	if len(v.ExpectStatus) == 0 {
		v.fault(At("expect_status"), "expect_status is empty, so that no answer is good", `want ranges such as "200-399"`)
	}
	for i, s := range v.ExpectStatus {
		switch {
		case s == StatusRange{}: // it could not be read
		case s.First > s.Last:
			v.fault(At("expect_status", i), fmt.Sprintf("%d-%d ends before it begins", s.First, s.Last), "")
		case s.First < 100 || s.Last > 599:
			v.fault(At("expect_status", i), fmt.Sprintf("%d-%d are no statuses of HTTP", s.First, s.Last), "want 100 to 599")
		}
	}
}

// expression looks at a regular expression. It is not compiled: one of a few bytes can be as large
// as a program can hold.
func (v *checkValidator) expression(key, expr string) {
	if len(expr) > maxCheckText {
		v.fault(At(key), fmt.Sprintf("%s has %d bytes", key, len(expr)), fmt.Sprintf("want %d at most", maxCheckText))
		return
	}
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		v.fault(At(key), fmt.Sprintf("%s %s is not a regular expression: %s", key, Excerpt(expr), whyNoExpression(err)), "")
		return
	}
	if programSize(re) > maxProgram {
		v.fault(At(key), fmt.Sprintf("%s %s takes too long to look for", key, Excerpt(expr)), "want fewer or smaller numbers in { }, and smaller classes")
	}
}

func whyNoExpression(err error) string {
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		return e.Code.String() // Error has the whole expression too, as it is
	}
	return Printable(err.Error())
}

// programSize returns about how many states a regular expression has, each range of a class counted as one, and some number above
// maxProgram if it has more than that.
func programSize(re *syntax.Regexp) int {
	size := 1
	switch re.Op {
	case syntax.OpLiteral:
		size = len(re.Rune)
	case syntax.OpCharClass: // two runes for each of its ranges
		size = max(1, len(re.Rune)/2)
	}
	for _, sub := range re.Sub {
		if size += programSize(sub); size > maxProgram {
			return size
		}
	}
	if re.Op == syntax.OpRepeat {
		size *= max(1, re.Min, re.Max)
	}
	return size
}

// serverName looks at the name that a certificate must have.
func (v *checkValidator) serverName() {
	_, err := netip.ParseAddr(v.ServerName)
	switch {
	case v.ServerName != "" && !IsName(v.ServerName) && (err != nil || strings.Contains(v.ServerName, "%")):
		v.fault(At("server_name"), Excerpt(v.ServerName)+" is not the name of a server", "want a name or an address, without port")
	case v.Type != CheckGRPC || v.TLS:
	case v.ServerName != "":
		v.fault(At("server_name"), "server_name does nothing without TLS", "write tls = true")
	case v.Insecure:
		v.fault(At("verify"), "verify does nothing without TLS", "write tls = true")
	case v.MinTLS != AnyTLS:
		v.fault(At("min_tls"), "min_tls does nothing without TLS", "write tls = true")
	}
}

func (v *checkValidator) grpc() {
	if len(v.GRPCService) > 253 || strings.ContainsFunc(v.GRPCService, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.fault(At("service"), Excerpt(v.GRPCService)+" is not the name of a service of gRPC", "want at most 253 letters, digits and signs, such as package.Service")
	}
}

func (v *checkValidator) talk() {
	switch {
	case len(v.Send) > maxCheckText:
		v.fault(At("send"), fmt.Sprintf("send has %d bytes", len(v.Send)), fmt.Sprintf("want %d at most", maxCheckText))
	case v.Type == CheckUDP && v.Send == "":
		v.fault(At("send"), "a udp check without send asks nothing", `write what is sent, such as send = "ping\r\n", and in expect what must come back`)
	}
	v.expression("expect", v.Expect)
}

func (v *checkValidator) command() {
	if len(v.Command) == 0 {
		v.fault(At("command"), "an exec check has no command", `write the program and its arguments, such as command = ["/usr/local/bin/alive", "-q"]`)
		return
	}
	if len(v.Command) > MaxArguments {
		v.fault(At("command"), fmt.Sprintf("command has %d elements, more than %d", len(v.Command), MaxArguments), "")
		return
	}
	for i, arg := range v.Command {
		at := At("command", i)
		switch {
		case strings.Contains(arg, "\x00"):
			v.fault(at, Excerpt(arg)+" has a NUL, which no argument can have", "")
		case len(arg) > maxCheckText:
			v.fault(at, fmt.Sprintf("the argument has %d bytes", len(arg)), fmt.Sprintf("want %d at most", maxCheckText))
		case i == 0 && !filepath.IsAbs(arg):
			v.fault(at, "the program "+Excerpt(arg)+" is not an absolute path", "it is not looked for, and no shell runs it: write it as /usr/bin/NAME")
		}
	}
}

// check looks at the health check, with what else the service has.
func (v *validator) check() {
	if v.HealthCheck != nil {
		for _, p := range ValidateCheck(v.HealthCheck) {
			p.Path = slices.Concat(At("health_check"), p.Path)
			v.problems = append(v.problems, p)
		}
		v.checkSource()
		v.checkPort()
	}
	if v.SlowStart < 0 || v.SlowStart > MaxSlowStart {
		v.fault(At("slow_start"), fmt.Sprintf("slow_start is %s", v.SlowStart), "want 0s to 1h")
	}
	if why := NoSlowStart(v.Scheduler); v.SlowStart > 0 && why != "" {
		v.warn(At("slow_start"), "slow_start does nothing with scheduler "+Excerpt(v.Scheduler), why)
	}
	for i := range v.Endpoints {
		if t := v.Endpoints[i].Tier; t > MaxTier && !v.full() {
			v.fault(At("endpoints", i, "tier"), fmt.Sprintf("tier is %d", t), fmt.Sprintf("want 0 to %d", MaxTier))
		}
	}
}

// checkSource finds that endpoints cannot be asked from the address to ask from.
func (v *validator) checkSource() {
	from := v.HealthCheck.Source
	if !from.IsValid() || len(v.Endpoints) == 0 {
		return
	}
	at := At("health_check", "source")
	other := slices.IndexFunc(v.Endpoints, func(e Endpoint) bool { return e.Addr.IsValid() && e.Addr.Is4() != from.Is4() })
	switch {
	case other < 0:
	case !slices.ContainsFunc(v.Endpoints, func(e Endpoint) bool { return !e.Addr.IsValid() || e.Addr.Is4() == from.Is4() }):
		v.fault(at, fmt.Sprintf("source %s is %s, and no endpoint is", from, family(from)), "")
	default:
		v.warn(at, fmt.Sprintf("source %s is %s, so endpoint %s is not asked from it", from, family(from), v.Endpoints[other].Addr), "")
	}
}

// asks are the protocols over which checks ask.
var asks = map[CheckType]Protocol{CheckTCP: TCP, CheckHTTP: TCP, CheckHTTPS: TCP, CheckGRPC: TCP, CheckUDP: UDP}

// checkPort finds that the check asks, over its protocol, a port which the service has for another.
func (v *validator) checkPort() {
	over, ok := asks[v.HealthCheck.Type]
	if !ok || v.HealthCheck.Port != 0 || len(v.Ports) == 0 {
		return
	}
	first := v.Ports[0]
	if slices.ContainsFunc(v.Ports, func(p Port) bool { return p.Protocol == over && p.TargetPort == first.TargetPort }) {
		return
	}
	msg := fmt.Sprintf("the check asks over %s, and port %d of the endpoints is of %s", over, first.TargetPort, first.Protocol)
	hint := "write in port where the endpoints answer it"
	if first.Protocol == SCTP { // nobody has that
		v.fault(At("health_check", "type"), msg, hint)
		return
	}
	v.warn(At("health_check", "type"), msg, hint)
}

// NoSlowStart returns why slow_start does nothing with a scheduler; empty: it does. A weight is no
// share to those to which it is what an endpoint can bear (sh, dh, ovf), a rank (fo), or a size of
// tables (mh).
func NoSlowStart(scheduler string) string {
	switch scheduler {
	case "sh", "dh", "fo", "ovf", "mh":
		return "to it a weight is no share"
	case Maglev:
		return "each host would begin at a moment of its own, and they would choose different endpoints"
	}
	return ""
}
