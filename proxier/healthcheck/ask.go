package healthcheck

import (
	"context"
	"fmt"
	"regexp"

	"svcproxy.dev/svcproxy/source"
)

// ask asks once, and returns nil if the endpoint is alive, soon after the end of ctx. A program runs as execUser.
func ask(ctx context.Context, q Question, check *source.HealthCheck, expect *expression, execUser string) error {
	if expect.err != nil {
		return expect.err
	}
	switch check.Type {
	case source.CheckTCP:
		return askTCP(ctx, q.At, check, expect.Regexp)
	case source.CheckHTTP, source.CheckHTTPS:
		return askHTTP(ctx, q.At, check, expect.Regexp)
	case source.CheckGRPC:
		return askGRPC(ctx, q.At, check)
	case source.CheckUDP:
		return askUDP(ctx, q.At, check, expect.Regexp)
	case source.CheckExec:
		return askProgram(ctx, q, check, execUser)
	}
	return fmt.Errorf("there is no check of type %q", check.Type)
}

// An expression is what answers must match. It is compiled once for all questions of its text: that may take longer than to ask.
type expression struct {
	*regexp.Regexp // nil: any answer will do
	err            error
	users          int
}

// expressions are those of all questions that are watched, by text.
type expressions map[string]*expression

// expected returns the expression that answers to a check must match; empty: any.
func expected(check *source.HealthCheck) string {
	if check.Type == source.CheckTCP || check.Type == source.CheckUDP {
		return check.Expect
	}
	return check.ExpectBody
}

// use returns the expression of a check until drop.
func (all expressions) use(check *source.HealthCheck) *expression {
	text := expected(check)
	e := all[text]
	if e == nil {
		e = new(expression)
		if text != "" {
			e.Regexp, e.err = regexp.Compile(text)
		}
		all[text] = e
	}
	e.users++
	return e
}

func (all expressions) drop(check *source.HealthCheck) {
	text := expected(check)
	if all[text].users--; all[text].users == 0 {
		delete(all, text)
	}
}
