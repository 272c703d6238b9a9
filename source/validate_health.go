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

// ValidateCheck returns what is wrong with a check, whatever service it is of, at paths in the
// check. One without a type has not been read, and has no problems. What a check
// without problems other than warnings has can be put into a request or a command line.
func ValidateCheck(c *HealthCheck) []Problem {
	if c.Type == 0 {
		return nil
	}
	var p problems
	p.times(c)
	if why := Unusable(c.Source); c.Source.IsValid() && why != "" {
		p.fault(At("source"), fmt.Sprintf("source %s is %s", c.Source, why), "want an address of this host")
	}
	switch c.Type {
	case CheckHTTP, CheckHTTPS:
		p.http(c)
		p.serverName(c)
	case CheckGRPC:
		if name := c.GRPCService; len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			p.fault(At("service"), Excerpt(name)+" is not the name of a service of gRPC", "want at most 253 letters, digits and signs, such as package.Service")
		}
		p.serverName(c)
	case CheckTCP, CheckUDP:
		p.talk(c)
	case CheckExec:
		p.command(c.Command)
	}
	return p
}

func (p *problems) times(c *HealthCheck) {
	for _, t := range []struct {
		key string
		is  time.Duration
	}{{"interval", c.Interval}, {"interval_down", c.IntervalDown}, {"timeout", c.Timeout}} {
		if t.is < MinCheckTime || t.is > MaxCheckTime {
			p.fault(At(t.key), fmt.Sprintf("%s is %s", t.key, t.is), "want 100ms to 1h")
			return
		}
	}
	if c.Timeout > c.Interval {
		p.warn(At("timeout"), fmt.Sprintf("timeout %s is more than interval %s", c.Timeout, c.Interval),
			"an endpoint that does not answer is asked only every timeout")
	}
	for _, n := range []struct {
		key string
		is  uint8
	}{{"rise", c.Rise}, {"fall", c.Fall}} {
		if n.is == 0 {
			p.fault(At(n.key), n.key+" is 0", "want 1 to 255")
		}
	}
}

func (p *problems) http(c *HealthCheck) {
	switch _, err := url.ParseRequestURI(c.Path); {
	case !strings.HasPrefix(c.Path, "/"):
		p.fault(At("path"), "the path "+Excerpt(c.Path)+` does not begin with "/"`, "")
	case len(c.Path) > maxCheckText:
		p.fault(At("path"), fmt.Sprintf("the path has %d bytes", len(c.Path)), fmt.Sprintf("want %d at most", maxCheckText))
	case err != nil || strings.ContainsFunc(c.Path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }):
		p.fault(At("path"), "the path "+Excerpt(c.Path)+" cannot be asked for", "write blanks, # and what is not ASCII as % and two hexadecimal digits, such as %20")
	}
	if c.Method == "" || len(c.Method) > 20 || strings.Trim(c.Method, upperCase) != "" {
		p.fault(At("method"), Excerpt(c.Method)+" is not a method", "want one in capital letters, such as GET or HEAD")
	}
	if c.Host != "" && !isHost(c.Host) {
		p.fault(At("host"), Excerpt(c.Host)+" is not a host", hostHint(c.Host))
	}
	if len(c.ExpectStatus) == 0 {
		p.fault(At("expect_status"), "expect_status is empty, so that no answer is good", `want ranges such as "200-399"`)
	}
	for i, s := range c.ExpectStatus {
		switch {
		case s == StatusRange{}: // it could not be read
		case s.First > s.Last:
			p.fault(At("expect_status", i), fmt.Sprintf("%d-%d ends before it begins", s.First, s.Last), "")
		case s.First < 100 || s.Last > 599:
			p.fault(At("expect_status", i), fmt.Sprintf("%d-%d are no statuses of HTTP", s.First, s.Last), "want 100 to 599")
		}
	}
	if c.Method == "HEAD" && c.ExpectBody != "" {
		p.fault(At("expect_body"), "the answer to HEAD has no body to match expect_body", "use GET")
	}
	p.expression("expect_body", c.ExpectBody)
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

// expression looks at a regular expression. It is not compiled: one of a few bytes can be as large
// as a program can hold.
func (p *problems) expression(key, expr string) {
	if len(expr) > maxCheckText {
		p.fault(At(key), fmt.Sprintf("%s has %d bytes", key, len(expr)), fmt.Sprintf("want %d at most", maxCheckText))
		return
	}
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		p.fault(At(key), fmt.Sprintf("%s %s is not a regular expression: %s", key, Excerpt(expr), whyNoExpression(err)), "")
		return
	}
	if programSize(re) > maxProgram {
		p.fault(At(key), fmt.Sprintf("%s %s takes too long to look for", key, Excerpt(expr)), "want fewer or smaller numbers in { }, and smaller classes")
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
func (p *problems) serverName(c *HealthCheck) {
	_, err := netip.ParseAddr(c.ServerName)
	switch {
	case c.ServerName != "" && !IsName(c.ServerName) && (err != nil || strings.Contains(c.ServerName, "%")):
		p.fault(At("server_name"), Excerpt(c.ServerName)+" is not the name of a server", "want a name or an address, without port")
	case c.Type != CheckGRPC || c.TLS:
	case c.ServerName != "":
		p.fault(At("server_name"), "server_name does nothing without TLS", "write tls = true")
	case c.Insecure:
		p.fault(At("verify"), "verify does nothing without TLS", "write tls = true")
	case c.MinTLS != AnyTLS:
		p.fault(At("min_tls"), "min_tls does nothing without TLS", "write tls = true")
	}
}

func (p *problems) talk(c *HealthCheck) {
	switch {
	case len(c.Send) > maxCheckText:
		p.fault(At("send"), fmt.Sprintf("send has %d bytes", len(c.Send)), fmt.Sprintf("want %d at most", maxCheckText))
	case c.Type == CheckUDP && c.Send == "":
		p.fault(At("send"), "a udp check without send asks nothing", `write what is sent, such as send = "ping\r\n", and in expect what must come back`)
	}
	p.expression("expect", c.Expect)
}

func (p *problems) command(command []string) {
	if len(command) == 0 {
		p.fault(At("command"), "an exec check has no command", `write the program and its arguments, such as command = ["/usr/local/bin/alive", "-q"]`)
		return
	}
	for _, problem := range ValidateCommand(command) {
		problem.Path = slices.Concat(At("command"), problem.Path)
		*p = append(*p, problem)
	}
}

// ValidateCommand returns what is wrong with a program and its arguments, at paths in the list.
func ValidateCommand(command []string) []Problem {
	var p problems
	if len(command) > MaxArguments {
		p.fault(nil, fmt.Sprintf("command has %d elements, more than %d", len(command), MaxArguments), "")
		return p
	}
	for i, arg := range command {
		at := At(i)
		switch {
		case strings.Contains(arg, "\x00"):
			p.fault(at, Excerpt(arg)+" has a NUL, which no argument can have", "")
		case len(arg) > maxCheckText:
			p.fault(at, fmt.Sprintf("the argument has %d bytes", len(arg)), fmt.Sprintf("want %d at most", maxCheckText))
		case i == 0 && !filepath.IsAbs(arg):
			p.fault(at, "the program "+Excerpt(arg)+" is not an absolute path", "it is not looked for, and no shell runs it: write it as /usr/bin/NAME")
		}
	}
	return p
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
