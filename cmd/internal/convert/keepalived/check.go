package keepalived

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// checkers are the checks that a real server can have.
var checkers = []string{"TCP_CHECK", "HTTP_GET", "SSL_GET", "SMTP_CHECK", "DNS_CHECK", "MISC_CHECK", "UDP_CHECK", "PING_CHECK", "BFD_CHECK", "FILE_CHECK"}

// A checkReader reads the check of one real server.
type checkReader struct {
	*reader.Service
	virtual, real, node *node
	addr                netip.Addr // of the real server
	port, own           uint16     // that keepalived asks where nothing else is written, and that of the endpoint
	misc                misc
	other               bool // the check means something else than what is written
}

// leaveOut notes what is not carried over and decides what the check means.
func (r *checkReader) leaveOut(at reader.Position, what, hint string) {
	r.Note(at, what, hint)
	r.other = true
}

// addChecks gives a service the check of its real servers.
func addChecks(s *reader.Service, virtual *node, reals []*node, hasSorry bool) {
	var checks []reader.Checked
	var miscs []misc
	places, serves := map[netip.AddrPort]bool{}, make(map[netip.Addr]bool, len(s.Endpoints))
	for i := range s.Endpoints {
		serves[s.Endpoints[i].Addr] = true
	}
	for _, n := range reals {
		addr, err := netip.ParseAddr(n.Arg(1))
		port, portErr := reader.PortOf(n.Arg(2))
		if err != nil || portErr != nil || !serves[addr] {
			continue // a note says so
		}
		r := checkReader{Service: s, virtual: virtual, real: n, addr: addr, port: cmp.Or(port, s.Ports[0].Port)}
		if r.own = r.port; s.Forward.Answers() {
			r.own = s.Ports[0].Port // packets keep it
		}
		place := netip.AddrPortFrom(addr, r.own)
		if places[place] {
			continue // so does a note
		}
		places[place] = true
		c := reader.Checked{At: n.at, Name: "real server " + n.Arg(1)}
		r.first(&c)
		c.Other = r.other && c.Check != nil
		checks, miscs = append(checks, c), append(miscs, r.misc)
	}
	each := dispatch(checks, miscs)
	s.SetCheck(checks)
	if s.HealthCheck != nil && hasSorry && !each {
		s.Note(virtual.at, "the sorry server is asked by the health check too", "it has to pass, or it is not used")
	}
}

// first reads the first usable check of a real server.
func (r *checkReader) first(c *reader.Checked) {
	for _, n := range r.real.sub {
		switch {
		case !slices.Contains(checkers, n.key()):
		case c.Check != nil:
			r.leaveOut(n.at, n.key()+" is left out: an endpoint has one check", `an exec check can ask several things`)
		default:
			r.node, c.At = n, n.at
			c.Check = r.read()
		}
	}
}

// value returns what the check, else its real server, else its virtual server says.
func (r checkReader) value(key string) (string, reader.Position) {
	for _, in := range []*node{r.node, r.real, r.virtual} {
		if s := in.value(key); s != nil {
			return s.Arg(1), s.at
		}
	}
	return "", reader.Position{}
}

// seconds returns a time, within the bounds of a check.
func (r checkReader) seconds(key string, standard time.Duration) time.Duration {
	text, at := r.value(key)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 || n > 1e6 || n != n {
		r.Note(at, key+" "+source.Excerpt(text)+" is left out: it is no number of seconds", "")
		return standard
	}
	d := time.Duration(n * float64(time.Second)).Round(time.Millisecond)
	within := max(source.MinCheckTime, min(source.MaxCheckTime, d))
	if within != d {
		r.Note(at, fmt.Sprintf("%s %s is written as %s", key, source.Excerpt(text), decode.ShortDuration(within)), fmt.Sprintf("times of checks are %s to %s", decode.ShortDuration(source.MinCheckTime), decode.ShortDuration(source.MaxCheckTime)))
	}
	return within
}

// retries returns how often a check that failed is repeated, from 0 to 254. The old name of the key is
// that of HTTP_GET and SSL_GET; what is written last holds.
func (r checkReader) retries(standard int) int {
	key := "retry"
	text, at := r.value(key)
	if n := r.node.value(oldRetry); n != nil && slices.Contains(ownKeys[r.node.key()], oldRetry) && (at.Line == 0 || r.node.value(key) == nil || at.Compare(n.at) < 0) {
		key, text, at = oldRetry, n.Arg(1), n.at
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if text != "" && err != nil {
		r.Note(at, key+" "+source.Excerpt(text)+" is left out: it is no number", "")
	}
	if err != nil {
		return standard
	}
	if n > 254 {
		r.Note(at, key+" "+source.Excerpt(text)+" is written as 254", "")
	}
	return int(min(n, 254))
}

// read returns the check; nil: there is none like it, and a note says so.
func (r *checkReader) read() *source.HealthCheck {
	c := r.times()
	ok := false
	switch r.node.key() {
	case "TCP_CHECK":
		c.Type, ok = source.CheckTCP, true
	case "HTTP_GET":
		c.Type, ok = source.CheckHTTP, r.http(c)
	case "SSL_GET":
		c.Type, c.Insecure, ok = source.CheckHTTPS, true, r.http(c)
	case "SMTP_CHECK":
		c.Type, c.Expect, ok = source.CheckTCP, "^220", true
		r.Note(r.node.at, "of SMTP_CHECK only the greeting is waited for: HELO is not said", "")
	case "MISC_CHECK":
		c.Type, ok = source.CheckExec, r.program(c)
	case "UDP_CHECK":
		c.Type, ok = source.CheckUDP, r.udp(c)
	case "DNS_CHECK":
		c.Type, ok = source.CheckUDP, r.dns(c)
	default:
		r.leaveOut(r.node.at, r.node.key()+" is left out: there is no such check", `write health_check = { type = "exec", command = [...] } with a program that asks`)
	}
	if !ok {
		return nil
	}
	r.where(c)
	r.retryDelay(c)
	r.unknown()
	return c
}

// retryDelays are after how long a failed check is asked again where delay_before_retry is not written: a second for most.
var retryDelays = map[string]time.Duration{"HTTP_GET": 3 * time.Second, "SSL_GET": 3 * time.Second}

// times returns a check with what all have in common.
func (r checkReader) times() *source.HealthCheck {
	interval := r.seconds("delay_loop", time.Minute)
	retries := map[string]int{"MISC_CHECK": 0, "DNS_CHECK": 3}
	standard, known := retries[r.node.key()]
	if !known {
		standard = 1
	}
	return &source.HealthCheck{
		Interval: interval, IntervalDown: interval, Timeout: r.seconds("connect_timeout", 5*time.Second),
		Rise: 1, Fall: uint8(r.retries(standard) + 1), Refuse: true,
	}
}

// retryDelay notes that keepalived repeats a check that failed after delay_before_retry, and svcproxy after the interval.
func (r checkReader) retryDelay(c *source.HealthCheck) {
	_, at := r.value("delay_before_retry")
	delay := r.seconds("delay_before_retry", cmp.Or(retryDelays[r.node.key()], time.Second))
	if r.node.key() == "DNS_CHECK" && at.Line == 0 {
		delay = c.Interval
	}
	if at = cmp.Or(at, r.node.at); c.Fall > 1 && delay != c.Interval {
		r.Note(at, fmt.Sprintf("delay_before_retry, %s, is left out: a check that failed is repeated after the interval, %s", decode.ShortDuration(delay), decode.ShortDuration(c.Interval)),
			fmt.Sprintf("an endpoint is down after %d failures in a row: shorten interval or lower fall", c.Fall))
	}
}

// where reads whom the check asks, and from where.
func (r *checkReader) where(c *source.HealthCheck) {
	all, port := r.node.sub, r.port
	for _, s := range r.node.sub {
		switch {
		case s.key() != "host" || !s.block: // host is of SMTP_CHECK
		case len(all) == len(r.node.sub):
			all = slices.Concat(all, s.sub)
		default:
			r.leaveOut(s.at, "another host of the check is left out: each endpoint is asked itself", "an exec check can ask another address")
		}
	}
	for _, s := range all {
		switch s.key() {
		case "connect_ip":
			if a, err := netip.ParseAddr(s.Arg(1)); err != nil || a != r.addr {
				r.leaveOut(s.at, "connect_ip "+source.Excerpt(s.Arg(1))+" is left out: each endpoint is asked itself", "an exec check can ask another address")
			}
		case "connect_port":
			n, err := reader.PortOf(s.Arg(1))
			if err != nil || n == 0 {
				r.Note(s.at, "connect_port "+source.Excerpt(s.Arg(1))+" is left out: it is no port", "")
				continue
			}
			port = n
		case "bindto":
			var err error
			if c.Source, err = netip.ParseAddr(s.Arg(1)); err != nil {
				r.Note(s.at, "bindto "+source.Excerpt(s.Arg(1))+" is left out: it is no address", "")
			}
		case "bind_port", "bind_if", "fwmark", "helo_name", "http_protocol", "enable_sni", "user":
			r.Note(s.at, s.key()+" of the check is left out", "")
		}
	}
	if port != r.own && c.Type != source.CheckExec { // a program is told no port but that of the endpoint
		c.Port = port
	}
}

// http reads the first URL.
func (r *checkReader) http(c *source.HealthCheck) bool {
	c.Path, c.Method = "/", "GET"
	c.Host, _ = r.value("virtualhost")
	urls := 0
	if r.node.last("url") == nil {
		r.Note(r.node.at, r.node.key()+" is left out: it has no url, so keepalived does not use it", "")
		return false
	}
	for _, s := range r.node.sub {
		if s.key() != "url" {
			continue
		}
		if urls++; urls > 1 {
			r.leaveOut(s.at, "another url of the check is left out: one is asked for", "an exec check can ask several things")
			continue
		}
		for _, u := range s.sub {
			r.url(c, u)
		}
		if flags := r.regexFlags(s); flags != "" && c.ExpectBody != "" {
			c.ExpectBody = "(?" + flags + ")" + c.ExpectBody
		}
	}
	if len(c.ExpectStatus) == 0 {
		c.ExpectStatus = []source.StatusRange{{First: 200, Last: 299}}
	}
	return true
}

// regexOptions are options of PCRE that are flags of RE2.
var regexOptions = map[string]string{"caseless": "i", "multiline": "m", "dotall": "s", "ungreedy": "U"}

// regexFlags returns the flags that the options of a URL stand for.
func (r *checkReader) regexFlags(url *node) (flags string) {
	for _, u := range url.sub {
		if u.key() != "regex_options" {
			continue
		}
		for _, word := range u.Words[1:] {
			flag, known := regexOptions[word]
			if !known {
				r.leaveOut(u.at, "regex_options "+source.Excerpt(word)+" is left out", "expect_body is a regular expression in the syntax of RE2")
			}
			flags += flag
		}
	}
	return flags
}

func (r *checkReader) url(c *source.HealthCheck, u *node) {
	switch u.key() {
	case "path":
		c.Path = u.Arg(1)
	case "virtualhost":
		c.Host = u.Arg(1)
	case "status_code":
		c.ExpectStatus = append(c.ExpectStatus, r.statuses(u)...)
	case "regex":
		c.ExpectBody = reader.Expression(u.Arg(1))
	case "regex_options", "regex_stack":
	case "regex_no_match":
		r.leaveOut(u.at, "regex_no_match is left out: expect_body is for what a page has", "an exec check can ask for what a page does not have")
	case "regex_min_offset", "regex_max_offset":
		r.leaveOut(u.at, u.key()+" is left out: expect_body looks at the page from its beginning", "")
	case "digest":
		r.leaveOut(u.at, "digest is left out: pages are not hashed", "expect_body looks for a regular expression in the page")
	default:
		r.Note(u.at, source.Excerpt(u.key())+" of url is left out", "expect_body is a regular expression in the syntax of RE2")
	}
}

func (r *checkReader) statuses(u *node) (list []source.StatusRange) {
	for _, w := range u.Words[1:] {
		statuses, ok := reader.StatusRange(w)
		if !ok {
			r.leaveOut(u.at, "status_code "+source.Excerpt(w)+" is left out", "want 100 to 599")
			continue
		}
		list = append(list, statuses)
	}
	return list
}
