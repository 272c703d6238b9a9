package healthcheck

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strconv"
	"unique"

	"svcproxy.dev/svcproxy/source"
)

// A Question is what a health check asks of one endpoint. Equal Questions are the
// same one, and asked once.
type Question struct {
	At      netip.AddrPort
	Service source.Key // of exec, whose program is told it; else zero

	check unique.Handle[string] // see canonical
}

// Ask returns the question that the health check of a service asks of an endpoint.
func Ask(svc *source.Service, e *source.Endpoint) Question {
	q := Question{At: svc.AskedAt(e), check: unique.Make(canonical(svc.HealthCheck))}
	if svc.HealthCheck.Type == source.CheckExec {
		q.Service = svc.Key
	}
	return q
}

// phase is where in its grid the question is asked: all values are as likely.
func (q Question) phase() uint64 {
	sum := sha256.Sum256(append(quoted(nil, q.At.String(), q.Service.String()), q.check.Value()...))
	return binary.BigEndian.Uint64(sum[16:])
}

// canonical says all of a check by which two questions to one place differ: not Port,
// which is in Question.At, and not Refuse, which does not matter to an endpoint.
func canonical(c *source.HealthCheck) string {
	b := quoted(nil, c.Type.String(), c.Path, c.Method, c.Host, c.ExpectBody, c.ServerName, c.GRPCService, c.Send, c.Expect, c.Source.String(), c.Barred)
	for _, r := range c.ExpectStatus {
		b = numbers(b, int64(r.First), int64(r.Last))
	}
	b = strconv.AppendBool(append(b, ';'), c.TLS)
	b = strconv.AppendBool(b, c.Insecure)
	b = numbers(b, int64(c.MinTLS))
	b = quoted(append(b, ';'), c.Command...)
	return string(numbers(b, int64(c.Interval), int64(c.IntervalDown), int64(c.Timeout), int64(c.Rise), int64(c.Fall)))
}

func quoted(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = strconv.AppendQuote(b, s)
	}
	return b
}

func numbers(b []byte, of ...int64) []byte {
	for _, n := range of {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return b
}
