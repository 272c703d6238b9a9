package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/daemon"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/configs"
)

func explainCommand(p *program) *cobra.Command {
	var asJSON bool
	var in string
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "explain SRC DST[:PORT][/PROTO]",
		Short: "What becomes of a packet, and what stands in its way",
		Long: `Explain walks with the first packet of a connection from SRC to DST: which service,
policy and endpoints it meets and why, whether our objects are in the kernel, the
routes, and what of this host or of other programs' rules stands in its way. The
verdict names the first such thing. Without PORT it lists what the address serves;
without PROTO a port is one of TCP.

It asks the running daemon. Without one it reads the files as the daemon would, which
takes root or CAP_NET_ADMIN. Nothing is sent and nothing is changed.

Exit codes: 0 it works, or the address serves something; 1 it does not; 2 wrong usage;
3 the daemon or a file could not be reached.`,
		Example: `  svcproxy explain 203.0.113.9 10.96.0.10:80/tcp
  svcproxy explain 2001:db8::9 [fd00:96::10]:53/udp --interface eth1`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := explain.Parse(args[0], args[1], in)
			if err != nil {
				return p.usage(err)
			}
			return p.explain(cmd.Context(), q, &flags, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	cmd.Flags().StringVar(&in, "interface", "", "the packet comes in by this interface; default: the one of the way back to SRC")
	flags.Bind(cmd.Flags())
	return cmd
}

// explain prints the report, and returns an error where the packet does not get through.
func (p *program) explain(ctx context.Context, q explain.Question, flags *configs.Flags, asJSON bool) error {
	var r explain.Report
	err := control.NewClient(p.dirs.run).Ask(ctx, explain.Path, q.Query(), &r)
	if errors.Is(err, control.ErrNoRights) {
		return unreachable(err)
	}
	if errors.Is(err, control.ErrUnreachable) {
		err = p.explainAlone(ctx, q, flags, &r)
	}
	if err != nil {
		return err
	}
	if asJSON {
		err = json.NewEncoder(p.stdout).Encode(r)
	} else {
		err = r.Write(p.stdout)
	}
	if err == nil && !r.Works {
		return &codedError{code: exitFailed}
	}
	return err
}

// explainAlone does without a daemon what it would do.
func (p *program) explainAlone(ctx context.Context, q explain.Question, flags *configs.Flags, r *explain.Report) error {
	if err := mayAdminister("explain"); err != nil {
		return unreachable(fmt.Errorf("no daemon answers, and without one %w", err))
	}
	held, err := p.checker(flags).Held()
	if err != nil {
		return unreachable(err)
	}
	if err := p.report(held.Faults, false); err != nil {
		return err
	}
	report, err := daemon.Explain(ctx, held, q)
	if err == nil {
		*r = *report
		_, err = fmt.Fprintln(p.stderr, "no daemon answers; this is of the files as they are")
	}
	return err
}
