package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/configs"
)

func (p *program) initCommand() *cobra.Command {
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "The one-time host settings that need more rights, then exit",
		Long: `Init loads kernel modules, sets what [conntrack] asks for and what IPVS needs in
ipvs mode, and route_localnet for localhost_node_ports. It turns on IPv4 and IPv6
forwarding of the whole host (with accept_ra=2 where router advertisements are in
use), unless [init] forwarding is false. The run directory is given to the group
svcproxy, where there is one. It prints each thing that it changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.settingsOrLastGood(&flags)
			if err != nil {
				return err
			}
			if err := mayAdminister("init"); err != nil {
				return err
			}
			return errors.Join(p.shareRunDir(), hostsetup.Init(cmd.Context(), s, p.stdout))
		},
	}
	flags.Bind(cmd.Flags(), "mode", "families", "localhost_node_ports")
	return cmd
}

// shareRunDir lets the group that may ask the daemon do so.
func (p *program) shareRunDir() error {
	done, err := control.ShareRunDir(p.dirs.run)
	if err == nil && done != "" {
		_, err = fmt.Fprintln(p.stdout, done)
	}
	return err
}
