package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/daemon"
	"svcproxy.dev/svcproxy/cmd/internal/plan"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
)

// exitChanges says that a sync would change something. Wrong usage has the same code,
// and says so on standard error.
const exitChanges = 2

func planCommand(p *program) *cobra.Command {
	var against string
	var asJSON, all bool
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "What a sync would change now: services, connections, kernel objects",
		Long: `Plan says what a sync would change, and changes nothing: services and endpoints that
come, go or change; what that means for connections, UDP flows and clients with session
affinity; and the objects of the kernel. It fits on a screen; --all and --json show all.

A running daemon is asked, which works without root. It applies files by itself, so its
plan is what is not in the kernel yet and what other programs have changed there; faults
of files that are held or refused go to standard error. Where no daemon runs, plan reads
the files as one that starts would, compares them with the versions that were last
accepted, and the kernel with what it should hold, which needs root or CAP_NET_ADMIN and
probes the kernel as a start does.

With --against, two directories are compared, each with its svcproxy.toml: DIR has the
files that are in use, say a checkout, and --config-dir those that are to come. No daemon
is asked, no kernel and no root are needed, addresses of this host do not count, and
kernel objects are those of the setting mode, for "auto" of nftables. Settings as flags
count where no daemon is asked.

Exit codes: 0 nothing would change; 2 something would; 1 faults in files, or the work
failed; 3 a file, or daemon and kernel, could not be reached. 2 is wrong usage too: then
nothing is on standard output.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Reset(unix.SIGINT, unix.SIGTERM) // they end it, whatever it waits for
			r, err := p.makePlan(cmd.Context(), against, &flags)
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(p.stdout).Encode(r)
			} else {
				err = r.Write(p.stdout, all)
			}
			if err != nil {
				return err
			}
			if err := p.report(r.Faults, asJSON); err != nil {
				return err
			}
			var errs []error
			for _, e := range r.Errors {
				errs = append(errs, errors.New(e))
			}
			switch {
			case r.Unreadable:
				return &codedError{exitUnreachable, errors.Join(errs...)}
			case len(errs) > 0 || source.AnyError(r.Faults):
				return &codedError{exitFailed, errors.Join(errs...)}
			case r.Changes():
				return &codedError{code: exitChanges}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "compare with the files of this directory, without daemon and kernel")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the plan as a JSON object")
	cmd.Flags().BoolVar(&all, "all", false, "print all of it")
	flags.Bind(cmd.Flags())
	return cmd
}

// makePlan compares directories, asks the daemon or, where there is none, works alone.
func (p *program) makePlan(ctx context.Context, against string, flags *configs.Flags) (*plan.Report, error) {
	load := func(path string) (configs.Settings, []source.Fault, error) { return load(path, flags) }
	if against != "" {
		return plan.Against{Old: against, New: p.dirs.config, Load: load, Rules: sources.Rules}.Report(), nil
	}
	r, err := daemon.AskPlan(ctx, p.dirs.run)
	switch {
	case errors.Is(err, control.ErrNoRights):
		return nil, unreachable(err)
	case !errors.Is(err, control.ErrUnreachable):
		return r, err
	}
	if control.NewClient(p.dirs.run).Running(ctx) { // it takes too long
		return nil, unreachable(err)
	}
	if err := p.nobodyRuns(ctx); err != nil {
		return nil, unreachable(fmt.Errorf("the plan of another daemon cannot be made: %w", err))
	}
	if mayAdminister("plan") != nil {
		return nil, unreachable(fmt.Errorf("%w; without it, plan needs root or CAP_NET_ADMIN to read the kernel: --against needs neither", err))
	}
	return daemon.PlanAlone(ctx, settings.Config{ConfigDir: p.dirs.config, StateDir: p.dirs.state, Load: load}, p.stderr)
}
