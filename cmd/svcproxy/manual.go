//go:build manual

package main

import (
	"os"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/manual"
)

func init() { more = append(more, manualCommand) }

func manualCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:    "manual DIR",
		Short:  "Write the manual and completions",
		Long:   `Manual writes manual pages, the whole manual as HTML, and completions below DIR. It runs in the folder of the sources.`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return manual.Write(args[0], cmd.Root(), os.DirFS("."))
		},
	}
}
