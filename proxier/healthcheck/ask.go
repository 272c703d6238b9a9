package healthcheck

import (
	"context"
	"fmt"

	"svcproxy.dev/svcproxy/source"
)

// An asker asks the questions of one text. It returns nil if the endpoint is alive, and soon after the end of ctx.
// Several goroutines call it at once.
type asker func(ctx context.Context, q Question) error

// newAsker returns the asker of a check, whose program, if it has one, runs as execUser. An error: its path or a regular
// expression is not one.
func newAsker(check *source.HealthCheck, execUser string) (asker, error) {
	switch check.Type {
	case source.CheckTCP:
		return newTCP(check)
	case source.CheckHTTP, source.CheckHTTPS:
		return newHTTP(check)
	case source.CheckGRPC:
		return newGRPC(check)
	case source.CheckUDP:
		return newUDP(check)
	case source.CheckExec:
		return newProgram(check, execUser)
	}
	return nil, fmt.Errorf("there is no check of type %q", check.Type)
}
