package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
)

// watchEvery is how often status --watch asks.
const watchEvery = 2 * time.Second

func (p *program) statusCommand() *cobra.Command {
	var format string
	var watch bool
	formats := []string{"table", "wide", "json"}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Services, endpoints, files, last sync, from the running daemon",
		Long: `Status asks the daemon that has the run directory what it holds and how it does:
services with what becomes of their packets, files with their faults, syncs, and
what it warns of. Wide also shows where services are from, and every endpoint.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if !slices.Contains(formats, format) {
				p.working = false
				return fmt.Errorf("unknown output %q; want table, wide or json", format)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return p.watch(cmd.Context(), format)
			}
			return p.status(cmd.Context(), format)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table, wide or json")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every 2 s")
	return cmd
}

// status asks once and prints the answer.
func (p *program) status(ctx context.Context, format string) error {
	st, err := control.NewClient(p.dirs.run).Status(ctx)
	if errors.Is(err, control.ErrUnreachable) || errors.Is(err, control.ErrNoRights) {
		return unreachable(err)
	}
	if err != nil {
		return err
	}
	if format == "json" {
		return json.NewEncoder(p.stdout).Encode(st)
	}
	return st.WriteTable(p.stdout, format == "wide", time.Now())
}

// watch asks again and again, until it is interrupted or the daemon is gone.
func (p *program) watch(ctx context.Context, format string) error {
	for {
		if format != "json" && isTerminal(p.stdout) {
			fmt.Fprint(p.stdout, "\x1b[H\x1b[2J") // home, clear
		}
		if err := p.status(ctx, format); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
