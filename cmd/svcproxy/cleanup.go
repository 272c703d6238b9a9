package main

import (
	"errors"

	"github.com/spf13/cobra"

	"svcproxy/cmd/internal/control"
	"svcproxy/cmd/internal/daemon"
)

func (p *program) cleanupCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of ours from the kernel, in every mode, and nothing else",
		Long: `Cleanup removes all that any mode may have left in the kernel, for IPv4 and IPv6.
That there is nothing to remove is no error.

While a daemon has the run directory, cleanup refuses: the daemon would put
everything back. With --force it goes ahead, which is a way to make a running
daemon write everything anew.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !force && control.NewClient(p.dirs.run).Running(cmd.Context()) {
				return errors.New("svcproxy is running and would put everything back: stop it first, or use --force")
			}
			return daemon.Cleanup(cmd.Context(), p.dirs.state)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also while svcproxy is running")
	return cmd
}
