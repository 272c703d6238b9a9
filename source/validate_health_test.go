package source_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// goodCheck returns a check of a type that has no problems.
func goodCheck(t source.CheckType) *source.HealthCheck {
	c := &source.HealthCheck{Type: t, Interval: 5 * time.Second, IntervalDown: time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	switch t {
	case source.CheckHTTP, source.CheckHTTPS:
		c.Path, c.Method, c.ExpectStatus = "/", "GET", []source.StatusRange{{First: 200, Last: 399}}
	case source.CheckUDP:
		c.Send = "ping"
	case source.CheckExec:
		c.Command = []string{"/bin/true"}
	}
	return c
}

func TestValidateCheck(t *testing.T) {
	const (
		path = "write blanks, # and what is not ASCII as % and two hexadecimal digits, such as %20"
		host = "want a name or an address, and behind a colon the port if it is to be sent"
		name = "want a name or an address, without port"
		all  = 64 // arguments and ranges
	)
	long := strings.Repeat("a", 1025)
	tests := []struct {
		name   string
		of     source.CheckType
		change func(c *source.HealthCheck)
		want   string // path: message; hint
	}{
		{"not read", source.CheckTCP, func(c *source.HealthCheck) { *c = source.HealthCheck{Path: "\n"} }, ""},
		{"tcp", source.CheckTCP, func(c *source.HealthCheck) {}, ""},
		{"http", source.CheckHTTP, func(c *source.HealthCheck) {}, ""},
		{"https", source.CheckHTTPS, func(c *source.HealthCheck) {}, ""},
		{"grpc", source.CheckGRPC, func(c *source.HealthCheck) {}, ""},
		{"udp", source.CheckUDP, func(c *source.HealthCheck) {}, ""},
		{"exec", source.CheckExec, func(c *source.HealthCheck) {}, ""},

		{"interval", source.CheckTCP, func(c *source.HealthCheck) { c.Interval = 99 * time.Millisecond }, "interval: interval is 99ms; want 100ms to 1h"},
		{"interval_down", source.CheckTCP, func(c *source.HealthCheck) { c.IntervalDown = time.Hour + 1 }, "interval_down: interval_down is 1h0m0.000000001s; want 100ms to 1h"},
		{"timeout", source.CheckTCP, func(c *source.HealthCheck) { c.Timeout = 0 }, "timeout: timeout is 0s; want 100ms to 1h"},
		{"timeout of an interval", source.CheckTCP, func(c *source.HealthCheck) { c.Timeout = c.Interval }, ""},
		{"timeout above interval", source.CheckTCP, func(c *source.HealthCheck) { c.Timeout = c.Interval + 1 },
			"warning: timeout: timeout 5.000000001s is more than interval 5s; an endpoint that does not answer is asked only every timeout"},
		{"rise", source.CheckTCP, func(c *source.HealthCheck) { c.Rise = 0 }, "rise: rise is 0; want 1 to 255"},
		{"fall", source.CheckTCP, func(c *source.HealthCheck) { c.Fall = 0 }, "fall: fall is 0; want 1 to 255"},
		{"source", source.CheckTCP, func(c *source.HealthCheck) { c.Source = netip.MustParseAddr("fe80::1%eth0") }, "source: source fe80::1%eth0 is an address with a zone; want an address of this host"},

		{"path of 1024", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/" + long[2:] }, ""},
		{"path of 1025", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/" + long[1:] }, "path: the path has 1025 bytes; want 1024 at most"},
		{"path with a query", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/a%20b?x=1&y" }, ""},
		{"path with a new line", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/\nX: y" }, `path: the path "/\nX: y" cannot be asked for; ` + path},
		{"path with a blank", source.CheckHTTPS, func(c *source.HealthCheck) { c.Path = "/ HTTP/1.1" }, `path: the path "/ HTTP/1.1" cannot be asked for; ` + path},
		{"path with DEL", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/\x7f" }, `path: the path "/\x7f" cannot be asked for; ` + path},
		{"path in Greek", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "/α" }, `path: the path "/α" cannot be asked for; ` + path},
		{"a whole URL", source.CheckHTTP, func(c *source.HealthCheck) { c.Path = "http://x/" }, `path: the path "http://x/" does not begin with "/"`},
		{"method", source.CheckHTTP, func(c *source.HealthCheck) { c.Method = "HEAD" }, ""},
		{"no method", source.CheckHTTP, func(c *source.HealthCheck) { c.Method = "" }, `method: "" is not a method; want one in capital letters, such as GET or HEAD`},
		{"method with a blank", source.CheckHTTP, func(c *source.HealthCheck) { c.Method = "GET /" }, `method: "GET /" is not a method; want one in capital letters, such as GET or HEAD`},
		{"host", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "www.example.com:8080" }, ""},
		{"host of IPv4", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "192.0.2.1:80" }, ""},
		{"host of IPv6", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "[fd00::1]" }, ""},
		{"host of IPv6 and port", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "[fd00::1]:80" }, ""},
		{"host of IPv6 without brackets", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "fd00::1" }, `host: "fd00::1" is not a host; write "[fd00::1]"`},
		{"host cut off", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "[fd00::1" }, `host: "[fd00::1" is not a host; ` + host},
		{"host and rubbish", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "[fd00::1]80" }, `host: "[fd00::1]80" is not a host; ` + host},
		{"host with a zone", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "[fe80::1%e]" }, `host: "[fe80::1%e]" is not a host; ` + host},
		{"host with a header", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "a\r\nX:1" }, `host: "a\r\nX:1" is not a host; ` + host},
		{"host with a path", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "a/b" }, `host: "a/b" is not a host; ` + host},
		{"port 0", source.CheckHTTP, func(c *source.HealthCheck) { c.Host = "a:0" }, `host: "a:0" is not a host; ` + host},
		{"no statuses", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectStatus = nil }, `expect_status: expect_status is empty, so that no answer is good; want ranges such as "200-399"`},
		{"statuses", source.CheckHTTP, func(c *source.HealthCheck) {
			c.ExpectStatus = []source.StatusRange{{}, {200, 200}, {300, 200}, {99, 200}, {200, 600}}
		}, "expect_status[2]: 300-200 ends before it begins\nexpect_status[3]: 99-200 are no statuses of HTTP; want 100 to 599\nexpect_status[4]: 200-600 are no statuses of HTTP; want 100 to 599"},
		{"body", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = "^ok$|(?i)fine" }, ""},
		{"body of 1025", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = long }, "expect_body: expect_body has 1025 bytes; want 1024 at most"},
		{"body that is large", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = strings.Repeat("a{999}", 3) },
			`expect_body: expect_body "a{999}a{999}a{999}" takes too long to look for; want fewer or smaller numbers in { }, and smaller classes`},
		{"body of HEAD", source.CheckHTTP, func(c *source.HealthCheck) { c.Method, c.ExpectBody = "HEAD", "ok" }, "expect_body: the answer to HEAD has no body to match expect_body; use GET"},
		{"body of letters", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = `\pL+ [^x]{300}` }, ""},
		{"body of large classes", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = `\pL{20}` },
			`expect_body: expect_body "\\pL{20}" takes too long to look for; want fewer or smaller numbers in { }, and smaller classes`},
		{"body of a hundred numbers", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = strings.Repeat("(a|b{1000})", 90) },
			`expect_body: expect_body "` + strings.Repeat("(a|b{1000})", 6)[:64] + `"... takes too long to look for; want fewer or smaller numbers in { }, and smaller classes`},
		{"body that is no expression", source.CheckHTTP, func(c *source.HealthCheck) { c.ExpectBody = "\x1b[" }, `expect_body: expect_body "\x1b[" is not a regular expression: missing closing ]`},

		{"server_name", source.CheckHTTPS, func(c *source.HealthCheck) { c.ServerName = "a.example.com" }, ""},
		{"server_name of IPv6", source.CheckHTTPS, func(c *source.HealthCheck) { c.ServerName = "fd00::1" }, ""},
		{"server_name with a port", source.CheckHTTPS, func(c *source.HealthCheck) { c.ServerName = "a:443" }, `server_name: "a:443" is not the name of a server; ` + name},
		{"server_name with a zone", source.CheckHTTPS, func(c *source.HealthCheck) { c.ServerName = "fe80::1%a" }, `server_name: "fe80::1%a" is not the name of a server; ` + name},
		{"server_name of grpc", source.CheckGRPC, func(c *source.HealthCheck) { c.ServerName = "a" }, "server_name: server_name does nothing without TLS; write tls = true"},
		{"server_name of grpc with TLS", source.CheckGRPC, func(c *source.HealthCheck) { c.ServerName, c.TLS = "a", true }, ""},
		{"verify of grpc", source.CheckGRPC, func(c *source.HealthCheck) { c.Insecure = true }, "verify: verify does nothing without TLS; write tls = true"},
		{"min_tls of grpc", source.CheckGRPC, func(c *source.HealthCheck) { c.MinTLS = source.TLS11 }, "min_tls: min_tls does nothing without TLS; write tls = true"},
		{"service of grpc", source.CheckGRPC, func(c *source.HealthCheck) { c.GRPCService = "a.B/c" }, ""},
		{"service of grpc with a blank", source.CheckGRPC, func(c *source.HealthCheck) { c.GRPCService = "a b" },
			`service: "a b" is not the name of a service of gRPC; want at most 253 letters, digits and signs, such as package.Service`},

		{"tcp expects", source.CheckTCP, func(c *source.HealthCheck) { c.Expect = `^220 ` }, ""},
		{"tcp expects rubbish", source.CheckTCP, func(c *source.HealthCheck) { c.Expect = `a**` }, `expect: expect "a**" is not a regular expression: invalid nested repetition operator`},
		{"send of 1025", source.CheckTCP, func(c *source.HealthCheck) { c.Send = long }, "send: send has 1025 bytes; want 1024 at most"},
		{"send bytes", source.CheckUDP, func(c *source.HealthCheck) { c.Send = "\x00\xff\r\n" }, ""},
		{"udp sends nothing", source.CheckUDP, func(c *source.HealthCheck) { c.Send, c.Expect = "", "a" },
			`send: a udp check without send asks nothing; write what is sent, such as send = "ping\r\n", and in expect what must come back`},

		{"no command", source.CheckExec, func(c *source.HealthCheck) { c.Command = nil },
			`command: an exec check has no command; write the program and its arguments, such as command = ["/usr/local/bin/alive", "-q"]`},
		{"a relative program", source.CheckExec, func(c *source.HealthCheck) { c.Command = []string{"bin/true", "rel"} },
			`command[0]: the program "bin/true" is not an absolute path; it is not looked for, and no shell runs it: write it as /usr/bin/NAME`},
		{"no program", source.CheckExec, func(c *source.HealthCheck) { c.Command = []string{"", "a"} },
			`command[0]: the program "" is not an absolute path; it is not looked for, and no shell runs it: write it as /usr/bin/NAME`},
		{"NUL", source.CheckExec, func(c *source.HealthCheck) { c.Command = []string{"/bin/a\x00", "\x00"} },
			`command[0]: "/bin/a\x00" has a NUL, which no argument can have` + "\n" + `command[1]: "\x00" has a NUL, which no argument can have`},
		{"arguments as they are", source.CheckExec, func(c *source.HealthCheck) { c.Command = []string{"/bin/a", "", "; rm -rf /", "\n"} }, ""},
		{"a long argument", source.CheckExec, func(c *source.HealthCheck) { c.Command = []string{"/bin/a", long} }, "command[1]: the argument has 1025 bytes; want 1024 at most"},
		{"64 arguments", source.CheckExec, func(c *source.HealthCheck) { c.Command = slices.Repeat([]string{"/a"}, all) }, ""},
		{"65 arguments", source.CheckExec, func(c *source.HealthCheck) { c.Command = slices.Repeat([]string{"/a"}, all+1) }, "command: command has 65 elements, more than 64"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := goodCheck(tt.of)
			tt.change(c)
			if got := problems(source.ValidateCheck(c)); got != tt.want {
				t.Errorf("problems\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// What a service has to say of its check, and of what else keeps endpoints in use.
func TestValidateServiceWithCheck(t *testing.T) {
	const port = "; write in port where the endpoints answer it"
	tests := []struct {
		name   string
		of     source.CheckType
		change func(s *source.Service)
		want   string
	}{
		{"good", source.CheckHTTP, func(s *source.Service) {}, ""},
		{"a check at fault", source.CheckHTTP, func(s *source.Service) { s.HealthCheck.Path = "" }, `health_check.path: the path "" does not begin with "/"`},
		{"source of one family", source.CheckTCP, func(s *source.Service) { s.HealthCheck.Source = netip.MustParseAddr("10.0.0.1") },
			"warning: health_check.source: source 10.0.0.1 is IPv4, so endpoint fd00::11 is not asked from it"},
		{"source of no endpoint's family", source.CheckTCP, func(s *source.Service) {
			s.HealthCheck.Source, s.Endpoints = netip.MustParseAddr("10.0.0.1"), s.Endpoints[1:]
		}, "health_check.source: source 10.0.0.1 is IPv4, and no endpoint is"},
		{"source, no endpoints", source.CheckTCP, func(s *source.Service) { s.HealthCheck.Source, s.Endpoints = netip.MustParseAddr("10.0.0.1"), nil }, ""},
		{"sctp asked over tcp", source.CheckTCP, func(s *source.Service) { s.Ports[0].Protocol = source.SCTP },
			"health_check.type: the check asks over tcp, and port 8080 of the endpoints is of sctp" + port},
		{"sctp with a port to ask", source.CheckTCP, func(s *source.Service) { s.Ports[0].Protocol, s.HealthCheck.Port = source.SCTP, 80 }, ""},
		{"sctp asked by a program", source.CheckExec, func(s *source.Service) { s.Ports[0].Protocol = source.SCTP }, ""},
		{"udp asked over tcp", source.CheckGRPC, func(s *source.Service) { s.Ports[0].Protocol = source.UDP },
			"warning: health_check.type: the check asks over tcp, and port 8080 of the endpoints is of udp" + port},
		{"udp and tcp on one port", source.CheckTCP, func(s *source.Service) { s.Ports[0].Protocol, s.Ports[1].TargetPort = source.UDP, 8080 }, ""},
		{"tcp asked over udp", source.CheckUDP, func(s *source.Service) {},
			"warning: health_check.type: the check asks over udp, and port 8080 of the endpoints is of tcp" + port},
		{"slow start of an hour", source.CheckTCP, func(s *source.Service) { s.SlowStart = time.Hour }, ""},
		{"slow start of more", source.CheckTCP, func(s *source.Service) { s.SlowStart = time.Hour + 1 }, "slow_start: slow_start is 1h0m0.000000001s; want 0s to 1h"},
		{"slow start of no shares", source.CheckTCP, func(s *source.Service) { s.SlowStart, s.Scheduler = time.Minute, "sh" },
			"warning: slow_start: slow_start does nothing with scheduler \"sh\"; to it a weight is no share"},
		{"slow start of shares", source.CheckTCP, func(s *source.Service) { s.SlowStart, s.Scheduler = time.Minute, "wrr" }, ""},
		{"tier 9", source.CheckTCP, func(s *source.Service) { s.Endpoints[1].Tier = 9 }, ""},
		{"tier 10", source.CheckTCP, func(s *source.Service) { s.Endpoints[1].Tier = 10 }, "endpoints[1].tier: tier is 10; want 0 to 9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := good()
			s.HealthCheck = goodCheck(tt.of)
			tt.change(s)
			if got := problems(source.Validate(s)); got != tt.want {
				t.Errorf("problems\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}
