package main

import (
	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/configs"
)

func initCommand(p *program) *cobra.Command {
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "The one-time host settings that need more rights, then exit",
		Long: `Init loads kernel modules, sets what [conntrack] asks for and what IPVS needs in
ipvs mode, and route_localnet for localhost_node_ports. It turns on IPv4 and IPv6
forwarding of the whole host (with accept_ra=2 where router advertisements are in
use), unless [init] forwarding is false. It prints each thing that it changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.settingsOrLastGood(&flags)
			if err != nil {
				return err
			}
			if err := mayAdminister("init"); err != nil {
				return err
			}
			return hostsetup.Init(cmd.Context(), s, p.stdout)
		},
	}
	flags.Bind(cmd.Flags(), "mode", "families", "localhost_node_ports")
	return cmd
}
