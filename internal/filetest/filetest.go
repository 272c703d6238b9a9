// Package filetest does with service files what a daemon would.
package filetest

import (
	"context"
	"fmt"
	"log/slog"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// Accept has the files of a directory read and accepted: the state directory knows them then as
// the last that were good. It returns when they are, or with ctx.
func Accept(ctx context.Context, dir, state string) error {
	src := file.New(file.Options{Dir: dir, StateDir: state, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := sink(func(ch source.Changes) {
		src.Accepted(ch.Set)
		cancel()
	})
	if err := src.Run(ctx, accepted); err != nil {
		return fmt.Errorf("accepting the files of %s: %w", dir, err)
	}
	return nil
}

type sink func(source.Changes)

func (s sink) Apply(ch source.Changes) { s(ch) }
func (sink) Synced(string)             {}
