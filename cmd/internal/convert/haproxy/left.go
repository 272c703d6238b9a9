package haproxy

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// meaningless are first words of lines that have no meaning where packets are forwarded and no connection ends here.
var meaningless = []string{"bind", "mode", "server", "default-server", "balance", "default_backend", "stick-table", "stick", "log", "log-format", "log-tag", "timeout",
	"maxconn", "retries", "description", "id", "http-check", "tcp-check", "hash-type", "hash-balance-factor", "fullconn", "enabled", "stats", "unique-id-format", "backlog",
	"email-alert", "error-log-format", "guid", "server-template", "option"}

// plainOptions are options that have no meaning for them either, or are read elsewhere.
var plainOptions = []string{"tcplog", "httplog", "dontlognull", "dontlog-normal", "log-separate-errors", "logasap", "tcpka", "clitcpka", "srvtcpka", "redispatch", "splice-auto",
	"splice-request", "splice-response", "tcp-smart-accept", "tcp-smart-connect", "log-health-checks", "nolinger", "contstats", "allbackups", "abortonclose", "persist",
	"tcp-check", "httpchk", "ssl-hello-chk", "mysql-check", "pgsql-check", "redis-check", "ldap-check", "smtpchk", "external-check", "spop-check", "socket-stats", "checkcache"}

// noteLeftOut notes what else is written in a section, except for lines that have been taken.
func noteLeftOut(s *reader.Service, in *section, taken map[reader.Position]bool) {
	for _, l := range in.lines {
		switch word := l.Arg(0); {
		case taken[l.at]:
		case word == "option" && !slices.Contains(plainOptions, l.Arg(1)):
			s.Note(l.at, "option "+source.Excerpt(l.Arg(1))+" is left out", "")
		case word == "disabled":
			s.Disabled = true
		case word == "server-template":
			s.Note(l.at, "server-template is left out: nothing is looked up by name", "write the endpoints")
		case word == "use_backend" || word == "use-server":
			s.Note(l.at, word+" "+source.Excerpt(l.Arg(1))+" is left out: endpoints are not chosen by rules", "write a service with an address of its own")
		case word == "acl" || strings.HasPrefix(word, "tcp-request") || strings.HasPrefix(word, "tcp-response"):
			s.Note(l.at, word+" "+source.Excerpt(l.Arg(1))+" is left out: what is in connections is not looked at", "source_ranges says who may use a service")
		case !slices.Contains(meaningless, word):
			s.Note(l.at, source.Excerpt(word)+" is left out", "")
		}
	}
}
