package keepalived

import (
	"cmp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// ignored are statements that are read elsewhere, have no meaning here, or one that always holds.
var ignored = []string{"protocol", "lvs_sched", "lb_algo", "persistence_timeout", "persistence_granularity", "ops", "flag-1", "flag-2", "flag-3", "sh-port", "sh-fallback",
	"mh-port", "mh-fallback", "lvs_method", "lb_kind", "real_server", "sorry_server", "sorry_server_lvs_method", "quorum", "weight", "uthreshold", "lthreshold", "delay_loop",
	"connect_timeout", "retry", "delay_before_retry", "virtualhost", "alpha", "omega", "warmup", "snmp_name", "ip_family", "log_all_failures"}

// leftOut notes what else is written of a virtual server.
func leftOut(s *reader.Service, n *node, reals []*node) {
	for _, block := range slices.Concat([]*node{n}, reals) {
		for _, sub := range block.sub {
			if slices.Contains(ignored, sub.key()) || block != n && slices.Contains(checkers, sub.key()) {
				continue
			}
			what := source.Excerpt(sub.key()) + " is left out"
			if strings.HasSuffix(sub.key(), "inhibit") || sub.key() == "inhibit_on_failure" {
				what = sub.key() + " is left out: connections of an endpoint that failed go on in any case"
			}
			s.Note(sub.at, what, cmp.Or(keyHints[sub.key()], "see docs/moving.md"))
		}
	}
}

const byMetrics, inAnyCase = "alerts are made of metrics: see docs/monitoring.md", `nothing to do; close_connections = "failed" ends them`

// keyHints are what to do about statements that are left out.
var keyHints = map[string]string{
	"inhibit_on_failure": inAnyCase, "sorry_server_inhibit": inAnyCase,
	"notify_up": byMetrics, "notify_down": byMetrics, "quorum_up": byMetrics, "quorum_down": byMetrics, "smtp_alert": byMetrics,
	"hysteresis":         "rise and fall of the health check keep endpoints from flapping",
	"ha_suspend":         "checks go on while the address is elsewhere",
	"persistence_engine": "clients are told apart by address",
}

// oldRetry is what HTTP_GET and SSL_GET called retry.
const oldRetry = "nb_get_retry"

// commonKeys are statements of each check that are read, noted, or mean nothing here.
var commonKeys = []string{"connect_ip", "connect_port", "bindto", "bind_port", "bind_if", "fwmark", "alpha", "connect_timeout", "retry", "delay_before_retry", "warmup",
	"delay_loop", "log_all_failures"}

// ownKeys are the same of one kind of check.
var ownKeys = map[string][]string{
	"HTTP_GET":   {"url", "virtualhost", "http_protocol", "fast_recovery", "enable_sni", oldRetry},
	"SSL_GET":    {"url", "virtualhost", "http_protocol", "fast_recovery", "enable_sni", oldRetry},
	"SMTP_CHECK": {"host", "helo_name"},
	"MISC_CHECK": {"misc_path", "misc_timeout", "misc_dynamic", "user"},
	"UDP_CHECK":  {"payload", "require_reply", "min_reply_length", "max_reply_length"},
	"DNS_CHECK":  {"type", "name"},
}

// unknown notes what else is written of a check.
func (r checkReader) unknown() {
	for _, s := range r.node.sub {
		if !slices.Contains(commonKeys, s.key()) && !slices.Contains(ownKeys[r.node.key()], s.key()) {
			r.Note(s.at, source.Excerpt(s.key())+" of the check is left out", "see docs/moving.md")
		}
	}
}
