package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows"
)

func cleanupCommand(p *program) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of ours from the kernel, in every mode, and nothing else",
		Long: `Cleanup removes all that any mode may have left in the kernel, for IPv4 and IPv6.
It says what that was. That there is nothing to remove is no error.

While a daemon works in this network namespace or has the run directory, cleanup
refuses: the daemon would put everything back. With --force it goes ahead, which is a way to make a running
daemon write everything again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := mayAdminister("cleanup"); err != nil {
				return err
			}
			if !force {
				if err := p.nobodyRuns(cmd.Context()); err != nil {
					return fmt.Errorf("%w, or use --force: it would put everything back", err)
				}
			}
			ctx, removed := proxier.WithRemovals(cmd.Context())
			err := modeswitch.Cleanup(ctx, p.dirs.state, cmd.ErrOrStderr())
			if err == nil && !force { // a daemon that runs needs it
				err = flows.Forget(p.dirs.run)
			}
			text := "" // what was removed, as far as it went
			for _, line := range removed.Lines() {
				text += "removed " + line + "\n"
			}
			if text == "" && err == nil {
				text = "nothing of svcproxy was there\n"
			}
			_, unwritten := io.WriteString(p.stdout, text)
			return errors.Join(err, unwritten)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also while svcproxy is running")
	return cmd
}

// nobodyRuns returns which daemon works in this network namespace, or with the
// run directory in another.
func (p *program) nobodyRuns(ctx context.Context) error {
	if err := control.CheckNamespace(control.NamespaceName); err != nil {
		return err
	}
	if control.NewClient(p.dirs.run).Running(ctx) {
		return fmt.Errorf("svcproxy is running with --run-dir %s: stop it first", p.dirs.run)
	}
	return nil
}
