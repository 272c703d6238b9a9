// Package modestest replaces the modes that a process has, for tests.
package modestest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// built are the modes of this build.
var built = modes.All

// An Open opens a mode in one family.
type Open = func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error)

// Use replaces the table of modes for one test.
func Use(t *testing.T, list ...modes.Mode) {
	modes.All = list
	t.Cleanup(func() { modes.All = built })
}

// Stub returns the mode of that name with another way to open it.
func Stub(name string, open Open) modes.Mode {
	m := built[slices.IndexFunc(built, func(m modes.Mode) bool { return m.Name == name })]
	m.Open, m.Remove, m.Remembered = open, nil, nil
	return m
}

// Opens opens a backend.
func Opens(b modes.Backend) Open {
	return func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) { return b, nil }
}

// Fails cannot open a mode, and says why.
func Fails(why string) Open {
	return func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
		return nil, errors.New(why)
	}
}
