package keepalived

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A checker is a kind of check that a real server can have.
type checker struct {
	kind    source.CheckType
	read    func(*checkReader, *source.HealthCheck) bool // what is of it alone; false: nothing can be asked, and a note says so
	retries int                                          // where retry is not written
	delay   time.Duration                                // where delay_before_retry is not written; 0: the interval
	keys    map[string]bool                              // statements of it alone
}

var checkers = map[string]checker{
	"TCP_CHECK":  {source.CheckTCP, nil, 1, time.Second, nil},
	"HTTP_GET":   {source.CheckHTTP, (*checkReader).http, 1, 3 * time.Second, ofHTTP},
	"SSL_GET":    {source.CheckHTTPS, (*checkReader).http, 1, 3 * time.Second, ofHTTP},
	"SMTP_CHECK": {source.CheckTCP, (*checkReader).smtp, 1, time.Second, reader.WordSet("host helo_name")},
	"MISC_CHECK": {source.CheckExec, (*checkReader).program, 0, time.Second, reader.WordSet("misc_path misc_timeout misc_dynamic user")},
	"UDP_CHECK":  {source.CheckUDP, (*checkReader).udp, 1, time.Second, reader.WordSet("payload require_reply min_reply_length max_reply_length")},
	"DNS_CHECK":  {source.CheckUDP, (*checkReader).dns, 3, 0, reader.WordSet("type name")},
	"PING_CHECK": {read: (*checkReader).none}, "BFD_CHECK": {read: (*checkReader).none}, "FILE_CHECK": {read: (*checkReader).none},
}

// ofHTTP are statements of checks of HTTP, and oldRetry is what these called retry.
var ofHTTP = reader.WordSet("url virtualhost http_protocol fast_recovery enable_sni " + oldRetry)

const oldRetry = "nb_get_retry"

// A checkReader reads the check of one real server.
type checkReader struct {
	*reader.Service
	checker
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
		r := checkReader{Service: s, virtual: virtual, real: n, addr: addr, port: cmp.Or(port, s.Ports[0].Port)}
		if r.own = r.port; s.Forward.Answers() {
			r.own = s.Ports[0].Port // packets keep it
		}
		place := netip.AddrPortFrom(addr, r.own)
		if err != nil || portErr != nil || !serves[addr] || places[place] {
			continue // a note says so
		}
		places[place] = true
		c := reader.Checked{At: n.At, Name: "real server " + n.Arg(1)}
		r.first(&c)
		c.Other = r.other && c.Check != nil
		checks, miscs = append(checks, c), append(miscs, r.misc)
	}
	each := dispatch(checks, miscs)
	s.SetCheck(checks)
	if s.HealthCheck != nil && hasSorry && !each {
		s.Note(virtual.At, "the sorry server is asked by the health check too", "it has to pass, or it is not used")
	}
}

// first reads the first usable check of a real server.
func (r *checkReader) first(c *reader.Checked) {
	for _, n := range r.real.sub {
		kind, known := checkers[n.key()]
		switch {
		case !known:
		case c.Check != nil:
			r.leaveOut(n.At, n.key()+" is left out: an endpoint has one check", `an exec check can ask several things`)
		default:
			r.checker, r.node, c.At = kind, n, n.At
			c.Check = r.check()
		}
	}
}

// value returns what the check, else its real server, else its virtual server says.
func (r *checkReader) value(key string) (string, reader.Position) {
	for _, in := range []*node{r.node, r.real, r.virtual} {
		if s := in.value(key); s != nil {
			return s.Arg(1), s.At
		}
	}
	return "", reader.Position{}
}

// seconds returns a time, within the bounds of a check.
func (r *checkReader) seconds(key string, standard time.Duration) time.Duration {
	text, at := r.value(key)
	return r.CheckTime(at, key, text, standard, func(text string) (time.Duration, error) {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= 0 && n <= 1e6) {
			return 0, fmt.Errorf("%s is no number of seconds", source.Excerpt(text))
		}
		return time.Duration(n * float64(time.Second)).Round(time.Millisecond), nil
	})
}

// repeats returns how often a check that failed is repeated, from 0 to 254. What is written last holds.
func (r *checkReader) repeats() int {
	key := "retry"
	text, at := r.value(key)
	if n := r.node.value(oldRetry); n != nil && r.keys[oldRetry] && (at.Line == 0 || r.node.value(key) == nil || at.Compare(n.At) < 0) {
		key, text, at = oldRetry, n.Arg(1), n.At
	}
	n, err := strconv.ParseUint(text, 10, 31)
	switch {
	case text == "":
		return r.retries
	case err != nil:
		r.Note(at, key+" "+source.Excerpt(text)+" is left out: it is no number", "")
		return r.retries
	case n > 254:
		r.Note(at, key+" "+source.Excerpt(text)+" is written as 254", "")
	}
	return int(min(n, 254))
}

// check returns the check; nil: there is none like it, and a note says so.
func (r *checkReader) check() *source.HealthCheck {
	interval := r.seconds("delay_loop", time.Minute)
	c := &source.HealthCheck{
		Type: r.kind, Interval: interval, IntervalDown: interval, Timeout: r.seconds("connect_timeout", 5*time.Second),
		Rise: 1, Fall: uint8(r.repeats() + 1), Refuse: true,
	}
	if r.read != nil && !r.read(r, c) {
		return nil
	}
	r.where(c)
	_, at := r.value("delay_before_retry")
	if delay := r.seconds("delay_before_retry", cmp.Or(r.delay, c.Interval)); c.Fall > 1 && delay != c.Interval {
		r.Note(cmp.Or(at, r.node.At), fmt.Sprintf("delay_before_retry, %s, is left out: a check that failed is repeated after the interval, %s", decode.ShortDuration(delay), decode.ShortDuration(c.Interval)),
			fmt.Sprintf("an endpoint is down after %d failures in a row: shorten interval or lower fall", c.Fall))
	}
	for _, s := range r.node.sub {
		if !ofChecks[s.key()] && !r.keys[s.key()] {
			r.Note(s.At, source.Excerpt(s.key())+" of the check is left out", "see docs/moving.md")
		}
	}
	return c
}

// ofChecks are statements of each check that are read, noted, or mean nothing here.
var ofChecks = reader.WordSet(`connect_ip connect_port bindto bind_port bind_if fwmark alpha connect_timeout retry delay_before_retry warmup
	delay_loop log_all_failures`)

// where reads whom the check asks, and from where.
func (r *checkReader) where(c *source.HealthCheck) {
	all, port := r.node.sub, r.port
	for _, s := range r.node.sub {
		switch {
		case s.key() != "host" || !s.block: // host is of SMTP_CHECK
		case len(all) == len(r.node.sub):
			all = slices.Concat(all, s.sub)
		default:
			r.leaveOut(s.At, "another host of the check is left out: each endpoint is asked itself", "an exec check can ask another address")
		}
	}
	for _, s := range all {
		text := source.Excerpt(s.Arg(1))
		a, err := netip.ParseAddr(s.Arg(1))
		switch s.key() {
		case "connect_ip":
			if err != nil || a != r.addr {
				r.leaveOut(s.At, "connect_ip "+text+" is left out: each endpoint is asked itself", "an exec check can ask another address")
			}
		case "connect_port":
			if n, err := reader.PortOf(s.Arg(1)); err == nil && n != 0 {
				port = n
			} else {
				r.Note(s.At, "connect_port "+text+" is left out: it is no port", "")
			}
		case "bindto":
			if c.Source = a; err != nil {
				r.Note(s.At, "bindto "+text+" is left out: it is no address", "")
			}
		case "bind_port", "bind_if", "fwmark", "helo_name", "http_protocol", "enable_sni", "user":
			r.Note(s.At, s.key()+" of the check is left out", "")
		}
	}
	if port != r.own && c.Type != source.CheckExec { // a program is told no port but that of the endpoint
		c.Port = port
	}
}

func (r *checkReader) none(*source.HealthCheck) bool {
	r.leaveOut(r.node.At, r.node.key()+" is left out: there is no such check", `write health_check = { type = "exec", command = [...] } with a program that asks`)
	return false
}

func (r *checkReader) smtp(c *source.HealthCheck) bool {
	c.Expect = "^220"
	r.Note(r.node.At, "of SMTP_CHECK only the greeting is waited for: HELO is not said", "")
	return true
}

// http reads the first URL.
func (r *checkReader) http(c *source.HealthCheck) bool {
	c.Path, c.Method, c.Insecure = "/", "GET", r.kind == source.CheckHTTPS
	c.Host, _ = r.value("virtualhost")
	read := false
	for _, s := range r.node.sub {
		switch {
		case s.key() != "url":
		case read:
			r.leaveOut(s.At, "another url of the check is left out: one is asked for", "an exec check can ask several things")
		default:
			r.url(c, s)
			read = true
		}
	}
	if !read {
		r.Note(r.node.At, r.node.key()+" is left out: it has no url, so keepalived does not use it", "")
	}
	if len(c.ExpectStatus) == 0 {
		c.ExpectStatus = []source.StatusRange{{First: 200, Last: 299}}
	}
	return read
}

// regexOptions are options of PCRE that are flags of RE2.
var regexOptions = map[string]string{"caseless": "i", "multiline": "m", "dotall": "s", "ungreedy": "U"}

// leftOfURL are statements of a URL that decide whether it passes, and are left out.
var leftOfURL = map[string]reader.Left{
	"regex_no_match":   {Why: "expect_body is for what a page has", Hint: "an exec check can ask for what a page does not have"},
	"regex_min_offset": {Why: "expect_body looks at the page from its beginning"},
	"regex_max_offset": {Why: "expect_body looks at the page from its beginning"},
	"digest":           {Why: "pages are not hashed", Hint: "expect_body looks for a regular expression in the page"},
}

const inRE2 = "expect_body is a regular expression in the syntax of RE2"

func (r *checkReader) url(c *source.HealthCheck, url *node) {
	flags := ""
	for _, u := range url.sub {
		left, isLeft := leftOfURL[u.key()]
		switch key := u.key(); {
		case key == "path":
			c.Path = u.Arg(1)
		case key == "virtualhost":
			c.Host = u.Arg(1)
		case key == "status_code":
			for _, word := range u.Words[1:] {
				if statuses, ok := reader.StatusRange(word); ok {
					c.ExpectStatus = append(c.ExpectStatus, statuses)
				} else {
					r.leaveOut(u.At, "status_code "+source.Excerpt(word)+" is left out", "want 100 to 599")
				}
			}
		case key == "regex":
			c.ExpectBody = reader.Expression(u.Arg(1))
		case key == "regex_options":
			for _, word := range u.Words[1:] {
				if flags += regexOptions[word]; regexOptions[word] == "" {
					r.leaveOut(u.At, "regex_options "+source.Excerpt(word)+" is left out", inRE2)
				}
			}
		case isLeft:
			r.leaveOut(u.At, left.Of(key), left.Hint)
		case key != "regex_stack":
			r.Note(u.At, source.Excerpt(key)+" of url is left out", inRE2)
		}
	}
	if flags != "" && c.ExpectBody != "" {
		c.ExpectBody = "(?" + flags + ")" + c.ExpectBody
	}
}

// ignored are statements that are read elsewhere, have no meaning here, or one that always holds.
var ignored = reader.WordSet(`protocol lvs_sched lb_algo persistence_timeout persistence_granularity ops flag-1 flag-2 flag-3 sh-port sh-fallback
	mh-port mh-fallback lvs_method lb_kind real_server sorry_server sorry_server_lvs_method quorum weight uthreshold lthreshold delay_loop
	connect_timeout retry delay_before_retry virtualhost alpha omega warmup snmp_name ip_family log_all_failures`)

const byNotify = "[notify] runs a program for it: see docs/monitoring.md and configs/examples/notify"

const byMetrics, inAnyCase = "alerts are made of metrics: see docs/monitoring.md", `nothing to do; close_connections = "failed" ends them`

// keyHints are what to do about statements that are left out.
var keyHints = map[string]string{
	"inhibit_on_failure": inAnyCase, "sorry_server_inhibit": inAnyCase,
	"notify_up": byNotify, "notify_down": byNotify, "quorum_up": byNotify, "quorum_down": byNotify, "smtp_alert": byMetrics,
	"hysteresis":         "rise and fall of the health check keep endpoints from flapping",
	"ha_suspend":         "checks go on while the address is elsewhere",
	"persistence_engine": "clients are told apart by address",
}

// leftOut notes what else is written of a virtual server.
func leftOut(s *reader.Service, n *node, reals []*node) {
	for _, block := range slices.Concat([]*node{n}, reals) {
		for _, sub := range block.sub {
			_, isCheck := checkers[sub.key()]
			what := source.Excerpt(sub.key()) + " is left out"
			switch {
			case ignored[sub.key()] || isCheck && block != n:
				continue
			case strings.HasSuffix(sub.key(), "inhibit") || sub.key() == "inhibit_on_failure":
				what = sub.key() + " is left out: connections of an endpoint that failed go on in any case"
			}
			s.Note(sub.At, what, cmp.Or(keyHints[sub.key()], "see docs/moving.md"))
		}
	}
}
