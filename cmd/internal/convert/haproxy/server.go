package haproxy

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// serverFlags are parameters of a server without a value, serverKeys those with one, and serverOffs those that
// have only a no- before them.
var (
	serverFlags = reader.WordSet(`agent-check allow-0rtt backup check check-reuse-pool check-send-proxy check-sni-auto check-ssl check-via-socks4 disabled enabled
		force-sslv3 force-tlsv10 force-tlsv11 force-tlsv12 force-tlsv13 non-stick renegotiate send-proxy send-proxy-v2 send-proxy-v2-ssl
		send-proxy-v2-ssl-cn sni-auto ssl ssl-reuse stick strict-maxconn tfo tls-tickets`)
	serverKeys = reader.WordSet(`addr agent-addr agent-inter agent-port agent-send alpn ca-file cc check-alpn check-pool-conn-name check-proto check-sni ciphers
		ciphersuites client-sigalgs cookie crl-file crt curves downinter error-limit fall fastinter guid hash-key healthcheck id idle-ping
		init-addr init-state inter interface ktls log-bufsize log-proto max-reuse maxconn maxqueue minconn namespace npn observe on-error
		on-marked-down on-marked-up pool-conn-name pool-low-conn pool-max-conn pool-purge-delay port proto proxy-v2-options quic-cc-algo redir
		resolve-net resolve-opts resolve-prefer resolvers rise set-proxy-v2-tlv-fmt shard sigalgs slowstart sni socks4 source ssl-max-ver
		ssl-min-ver tcp-md5sig tcp-ut track usesrc verify verifyhost weight ws`)
	serverOffs = reader.WordSet("sslv3 tlsv10 tlsv11 tlsv12 tlsv13")
)

// leftParams are parameters of servers that are left out, and sendProxy those of them that put a header before connections.
var (
	leftParams = strings.Fields(`maxconn send-proxy send-proxy-v2 send-proxy-v2-ssl send-proxy-v2-ssl-cn check-send-proxy minconn init-state non-stick
		interface maxqueue tcp-md5sig namespace socks4 check-via-socks4 check-alpn check-proto healthcheck track source fastinter resolvers on-marked-up
		observe agent-check addr`)
	sendProxy = leftParams[1:5]
)

const (
	seeClients = `endpoints see the address of clients with masquerade = "never" of the service, where their answers come back through this host`
	inServers  = "limit connections in the server itself"
)

// paramHints are what to do about them.
var paramHints = map[string]string{
	"maxconn": inServers, "minconn": inServers, "observe": "health checks ask endpoints themselves", "agent-check": "an exec check can ask an agent",
	"send-proxy": seeClients, "send-proxy-v2": seeClients, "send-proxy-v2-ssl": seeClients, "send-proxy-v2-ssl-cn": seeClients, "addr": "each endpoint is asked itself",
}

// keptParams are those that are looked at.
var keptParams = reader.WordSet("backup ca-file check check-sni check-ssl crt disabled downinter fall inter on-marked-down port rise slowstart ssl verify verifyhost weight " +
	strings.Join(leftParams, " "))

// A proxyServer is a server line with what default-server lines say before it.
type proxyServer struct {
	reader.Line
	params map[string]string // flags have "yes"; of the next server when this one has been seen
}

// title names a server in messages.
func (p proxyServer) title() string { return "server " + source.Excerpt(p.Arg(1)) }

// setParams sets the parameters of a line that are looked at, from a word on. Each server after a default-server looks at
// its values, of which long ones are none in any case.
func setParams(s *reader.Service, to map[string]string, l reader.Line, from int) {
	for i := from; i < len(l.Words); i++ {
		key, _, _ := strings.Cut(l.Words[i], "(")
		name, off := strings.CutPrefix(key, "no-")
		value := "yes"
		switch {
		case off && (serverFlags[name] || serverKeys[name] || serverOffs[name]):
			delete(to, name)
			continue
		case key == "enabled":
			delete(to, "disabled")
			continue
		case serverKeys[key]:
			i++
			value = l.Arg(i)
		case !serverFlags[key]:
			s.Note(l.At, source.Excerpt(key)+" of servers is left out: svcproxy does not know it", "")
			if next := l.Arg(i + 1); !serverFlags[next] && !serverKeys[next] {
				i++ // its value
			}
		}
		if keptParams[key] {
			to[key] = value[:min(len(value), 100)]
		}
	}
}

// addServers makes endpoints of servers. A server with a host name becomes a comment; its check is read like any other.
func addServers(s *reader.Service, back *section) {
	checks := &checkReader{Service: s, back: back, asked: map[bool]*source.HealthCheck{}}
	checks.connect, _ = back.last("timeout", "connect")
	checks.answer, _ = back.last("timeout", "check")
	standard, own := map[string]string{}, map[string]string{}
	for _, l := range back.defaults.all("default-server") {
		setParams(s, standard, l, 1)
	}
	_, all := back.last("option", "allbackups")
	backups := 0
	for _, l := range back.lines {
		if l.Is("default-server") {
			setParams(s, standard, l, 1)
		}
		if !l.Is("server") {
			continue
		}
		clear(own)
		maps.Copy(own, standard)
		setParams(s, own, l, 3)
		p := proxyServer{l, own}
		e, name, err := p.endpoint(s)
		if err != nil {
			s.Note(l.At, p.title()+" is left out: "+err.Error(), "")
			continue
		}
		if own["backup"] != "" {
			e.Tier = 1
			if !all { // they stand in for each other, in their order
				backups++
				e.Tier = uint8(min(backups, source.MaxTier))
			}
		}
		if name != "" {
			s.Named = append(s.Named, reader.Named{Name: name, Endpoint: e})
		} else if !s.AddEndpoint(l.At, p.title(), e) {
			continue
		}
		checks.add(p, e.Port(s.Ports[0]))
	}
	n := len(s.Endpoints) // names have a part in what most endpoints have
	for _, named := range s.Named {
		s.Endpoints = append(s.Endpoints, named.Endpoint)
	}
	reader.CommonTargets(s.Service)
	for i, e := range s.Endpoints[n:] {
		s.Named[i].Endpoint = e
	}
	s.Endpoints = s.Endpoints[:n:n]
	checks.set()
}

// endpoint makes an endpoint of a server, and takes over the parameters that are of the whole service. A server with a
// host name returns the name and no address.
func (p proxyServer) endpoint(s *reader.Service) (e source.Endpoint, name string, err error) {
	a, name, number, err := serverAddr(p.Arg(2))
	switch why := source.Unusable(a); {
	case err != nil:
		return e, "", err
	case name == "" && why != "":
		return e, "", fmt.Errorf("%s is %s", a, why)
	case p.params["ssl"] != "":
		return e, "", fmt.Errorf("it is spoken to over TLS, which svcproxy does not begin")
	case name != "":
		s.Note(p.At, p.title()+" is a comment: nothing is looked up by name", "write the address of "+source.Printable(name)+" in its place among the endpoints, and take the # away")
	}
	e = reader.Endpoint(a)
	e.Ports = map[string]uint16{}
	for _, port := range s.Ports {
		if n := number(port.Port); n != 0 {
			e.Ports[port.Name] = n
		}
	}
	e.Disabled = p.params["disabled"] != ""
	if text := p.params["weight"]; text != "" {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			e.Weight = uint16(n)
		} else {
			s.Note(p.At, "the weight "+source.Excerpt(text)+" of "+p.title()+" is written as 1: it is no number up to 65535", "")
		}
	}
	if text := p.params["slowstart"]; text != "" {
		d, err := haproxyTime(text)
		if s.SlowStart = min(d, source.MaxSlowStart); err != nil || s.SlowStart != d {
			s.Note(p.At, fmt.Sprintf("slowstart of %s is %s, not %s", p.title(), decode.ShortDuration(s.SlowStart), source.Excerpt(text)), "")
		}
	}
	if p.params["on-marked-down"] == "shutdown-sessions" {
		s.CloseConnections = source.CloseFailed
	}
	for _, key := range leftParams {
		if _, has := p.params[key]; has {
			s.Note(p.At, key+" of servers is left out", paramHints[key])
		}
	}
	return e, name, nil
}

// serverAddr reads the address of a server, or its name, and how its port follows from that of the service: its
// own, the same, or the same and a number more or less.
func serverAddr(text string) (a netip.Addr, name string, number func(uint16) uint16, err error) {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "ipv4@"), "ipv6@")
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		host, port = text[:i], text[i+1:]
	}
	if whole, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		a, port = whole, ""
	} else if a, err = netip.ParseAddr(strings.Trim(host, "[]")); err != nil {
		if name = host; name == "" || len(name) > 253 || strings.ContainsAny(name, "/@") {
			return a, "", nil, fmt.Errorf("%s is no address of IP", source.Excerpt(host))
		}
	}
	n, err := strconv.Atoi(port)
	if port != "" && (err != nil || n > 65535 || n < -65535) {
		return a, "", nil, fmt.Errorf("%s is no port", source.Excerpt(port))
	}
	return a, name, func(from uint16) uint16 {
		switch {
		case strings.HasPrefix(port, "+") || n < 0:
			return uint16(max(0, min(65535, int(from)+n)))
		case n != 0:
			return uint16(n)
		}
		return from
	}, nil
}
