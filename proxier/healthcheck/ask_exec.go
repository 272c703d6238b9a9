package healthcheck

import (
	"context"
	"errors"
	"strconv"

	"svcproxy.dev/svcproxy/internal/program"
	"svcproxy.dev/svcproxy/source"
)

const (
	programs = 64 // that run at once

	// unreaped is how many there may be that have not ended, with those that were killed
	// and still do not: they wait for a disk that is gone, say.
	unreaped = 2 * programs

	// maxUnbegun is how many there may be that wait to begin.
	maxUnbegun = 8
)

// running are the programs of all checks of this process.
var running = program.NewGroup(unreaped, maxUnbegun)

// askProgram runs the program of a check as a user; empty: as the user of this process.
func askProgram(ctx context.Context, q Question, check *source.HealthCheck, user string) error {
	switch {
	case len(check.Command) == 0:
		return errors.New("there is no command")
	case check.Barred != "":
		return &ownError{errors.New(check.Barred)}
	}
	err := running.Run(ctx, program.Command{Args: check.Command, User: user, Env: environment(q)})
	if notRun, is := errors.AsType[*program.NotRunError](err); is {
		return &ownError{notRun.Err}
	}
	if errors.Is(err, program.ErrTimedOut) {
		return timeoutError("the program")
	}
	return err
}

func environment(q Question) []string {
	return []string{
		"SVCPROXY_ADDRESS=" + q.At.Addr().String(),
		"SVCPROXY_PORT=" + strconv.Itoa(int(q.At.Port())),
		"SVCPROXY_SERVICE=" + q.Service.String(),
	}
}
