package healthcheck

import (
	"context"
	"fmt"
	"regexp"

	"svcproxy.dev/svcproxy/source"
)

// ask asks once, and returns nil if the endpoint is alive, soon after the end of ctx. A program runs as execUser. What a
// check says is compiled each time: an expression takes some 10 us, which a probe takes many times over.
func ask(ctx context.Context, q Question, check *source.HealthCheck, execUser string) error {
	switch check.Type {
	case source.CheckTCP:
		return askTCP(ctx, q.At, check)
	case source.CheckHTTP, source.CheckHTTPS:
		return askHTTP(ctx, q.At, check)
	case source.CheckGRPC:
		return askGRPC(ctx, q.At, check)
	case source.CheckUDP:
		return askUDP(ctx, q.At, check)
	case source.CheckExec:
		return askProgram(ctx, q, check, execUser)
	}
	return fmt.Errorf("there is no check of type %q", check.Type)
}

// expression returns what an answer must match; nil, of an empty text: any does.
func expression(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	return regexp.Compile(text)
}
