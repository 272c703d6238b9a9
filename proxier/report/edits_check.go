package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// healthCheck compares two health checks, either of which may be nil.
func (e *editing) healthCheck(a, b *source.HealthCheck) {
	had, has := CheckWords(a), CheckWords(b)
	for i := range had {
		e.value("health_check."+had[i].Key, had[i].Value, has[i].Value)
		if (a == nil || b == nil) && a != b {
			return // of one that came or went the type is enough
		}
	}
}

// A CheckWord is one key of a health check, and its value, as files have them.
type CheckWord struct{ Key, Value string }

// CheckWords returns the keys of a health check, in the order of the manual; c may be nil.
func CheckWords(c *source.HealthCheck) []CheckWord {
	c = cmp.Or(c, new(source.HealthCheck))
	return []CheckWord{
		{"type", c.Type.String()}, {"port", number(c.Port)},
		{"path", c.Path}, {"method", c.Method}, {"host", c.Host},
		{"expect_status", strings.Join(texts(c.ExpectStatus, source.StatusRange.String), " ")}, {"expect_body", c.ExpectBody},
		{"tls", strconv.FormatBool(c.TLS)}, {"server_name", c.ServerName}, {"verify", strconv.FormatBool(!c.Insecure)},
		{"min_tls", c.MinTLS.String()},
		{"service", c.GRPCService}, {"send", c.Send}, {"expect", c.Expect},
		{"command", commandText(c)},
		{"interval", c.Interval.String()}, {"interval_down", c.IntervalDown.String()}, {"timeout", c.Timeout.String()},
		{"rise", number(uint16(c.Rise))}, {"fall", number(uint16(c.Fall))},
		{"source", sourceText(c.Source)}, {"all_failed", policy.AllFailed(c)},
	}
}

// commandText returns the program and its arguments, and why it does not run.
func commandText(c *source.HealthCheck) string {
	text := fmt.Sprintf("%q", c.Command)
	if c.Barred != "" {
		text += " (does not run: " + c.Barred + ")"
	}
	return text
}

func sourceText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
