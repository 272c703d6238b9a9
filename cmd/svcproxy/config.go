package main

import (
	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/configs"
)

func configCommand(p *program) *cobra.Command {
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective settings",
		Long:  `Config prints the settings that run would use, as a svcproxy.toml: defaults, the file, and flags over it.`,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := p.settings(&flags)
			if err != nil {
				return err
			}
			_, err = p.stdout.Write(configs.Format(s))
			return err
		},
	}
	flags.Bind(cmd.Flags())
	return cmd
}
