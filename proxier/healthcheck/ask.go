package healthcheck

import (
	"context"
	"fmt"

	"svcproxy.dev/svcproxy/source"
)

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

// shared is the asker of all questions of one text.
type shared struct {
	ask   asker
	text  string
	users int
}

// askers are those of all questions that are watched.
type askers struct {
	make func(*source.HealthCheck) (asker, error) // newAsker, except in tests
	all  map[string]*shared                       // by canonical text
}

// share returns the asker of a check, which questions of the same text have in common.
func (a *askers) share(q Question, check *source.HealthCheck) *shared {
	text := q.check.Value()
	s := a.all[text]
	if s == nil {
		s = &shared{text: text}
		var err error
		if s.ask, err = a.make(check); err != nil {
			s.ask = func(context.Context, Question) error { return err }
		}
		a.all[text] = s
	}
	s.users++
	return s
}

func (a *askers) unshare(s *shared) {
	if s.users--; s.users == 0 {
		delete(a.all, s.text)
	}
}
