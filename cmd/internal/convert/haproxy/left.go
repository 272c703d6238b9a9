package haproxy

import (
	"cmp"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// meaningless are first words of lines that are read elsewhere, or that mean nothing where packets are forwarded.
var meaningless = reader.WordSet(`bind mode server default-server balance default_backend stick-table stick log log-format log-tag description id http-check tcp-check
	hash-type hash-balance-factor enabled stats unique-id-format backlog email-alert error-log-format guid`)

// plainOptions are options that have no meaning for them either, or are read elsewhere.
var plainOptions = reader.WordSet(`tcplog httplog dontlognull dontlog-normal log-separate-errors logasap tcpka clitcpka srvtcpka splice-auto splice-request splice-response
	tcp-smart-accept tcp-smart-connect log-health-checks nolinger contstats allbackups abortonclose persist tcp-check httpchk ssl-hello-chk mysql-check pgsql-check
	redis-check ldap-check smtpchk external-check spop-check socket-stats checkcache`)

// httpWords begin lines of defaults that concern only sections of mode http. httpOptions are options of that kind.
var (
	httpWords   = reader.WordSet("errorfile http-request http-response http-reuse errorloc errorloc302 errorloc303 compression cookie")
	httpOptions = reader.WordSet("forwardfor http-server-close httpclose http-keep-alive http-pretend-keepalive http-ignore-probes accept-invalid-http-request")
)

// hints are what to do about lines that are left out, by their first words.
var hints = map[string]string{
	"server-template": "nothing is looked up by name: write the endpoints",
	"use_backend":     "endpoints are not chosen by rules: write a service with an address of its own",
	"use-server":      "endpoints are not chosen by rules: write a service with an address of its own",
	"acl":             inConnections, "tcp-request": inConnections, "tcp-response": inConnections,
	"maxconn": "limit connections in the endpoints", "fullconn": "limit connections in the endpoints",
	"retries": notAgain, "option redispatch": notAgain,
	"timeout": "connections end when either side ends them; [conntrack] in svcproxy.toml says how long idle ones are known",
}

const (
	inConnections = "what is in connections is not looked at: source_ranges says who may use a service"
	notAgain      = "a client that is refused has to connect again; a health check finds what refuses"
)

// leftOut returns the note on a line that is left out, or that is carried over in part.
func leftOut(l reader.Line, of string) (msg, hint string) {
	msg = l.Text(0) + of
	if l.Is("timeout", "connect") {
		return msg + " is used for health checks only", "clients connect to endpoints themselves"
	}
	return msg + " is left out", cmp.Or(hints[l.Arg(0)+" "+l.Arg(1)], hints[l.Arg(0)])
}

// silent reports whether a line needs no note: it is read elsewhere, or has no meaning here.
func silent(l reader.Line) bool {
	switch word := l.Arg(0); word {
	case "option":
		return plainOptions[l.Arg(1)]
	case "no":
		return len(l.Words) > 1 && l.Arg(1) != "no" && silent(reader.Line{Words: l.Words[1:]})
	case "timeout": // of checks alone
		return l.Arg(1) == "check"
	default:
		return meaningless[word]
	}
}

// noteDefaults notes, once, what is written in the defaults of a section and left out.
func (h *haproxy) noteDefaults(s *section, taken map[reader.Position]bool) {
	for s = s.defaults; s != nil && !s.used; s = s.defaults {
		s.used = true
		for _, l := range s.lines {
			http := httpWords[l.Arg(0)] || l.Is("option") && httpOptions[l.Arg(1)] || l.Is("timeout") && strings.HasPrefix(l.Arg(1), "http-")
			if !http && !taken[l.At] && !silent(l) && !l.Is("disabled") {
				msg, hint := leftOut(l, " of defaults")
				h.Note(l.At, msg, hint)
			}
		}
	}
}
