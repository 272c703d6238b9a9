package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/conditions"
)

// A drainCall is how drain was called.
type drainCall struct {
	node, wait, json bool
	question         control.Drain
	list             bool // there is no target
}

func drainCommand(p *program) *cobra.Command {
	var c drainCall
	cmd := &cobra.Command{
		Use:   "drain [ADDRESS | [NAMESPACE/]NAME/ADDRESS | --node]",
		Short: "Send no new connections to an endpoint; without arguments, what is drained",
		Long: `Drain takes an endpoint out of all services, or of one, until svcproxy undrain: it gets
no new connection from the moment drain returns, or with --wait prints its first line.
Established connections go on. A drain is kept over restarts and new versions of files,
with reason and user. An address that no service has is refused, so that a typing error
does not pass for a drain. Draining again what is drained changes only what is given.

--wait prints what is left, and ends with 0 when the last connection has ended, also over
a restart of the daemon. With --timeout, connections that are then left are closed where
their service says close_connections = "always", also when nobody waits any more; others
go on, and --wait ends with 1. --timeout 0 takes back what was given before.

--node drains this host: load balancers that ask /healthz or a health_check_node_port
hear 503, status --check fails, for keepalived, and what still comes is served as before.
Routes by BGP are marked for GRACEFUL_SHUTDOWN when drain returns, and then withdrawn.
The reason is in the answers of /healthz, for all who can reach it. --timeout then
closes nothing, it ends the wait.

Without arguments, drain shows what is drained. Changes are for root and the members of
the group svcproxy-admin.`,
		Example: `  svcproxy drain 192.168.10.12 --reason "new disk" --wait --timeout 5m
  svcproxy drain prod/web/fd00::12`,
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			c.question.NoLimit = cmd.Flags().Changed("timeout") && c.question.Timeout == 0
			err := c.validate(args)
			p.working = err == nil
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.list {
				return p.listDrains(cmd, c.json)
			}
			return c.run(cmd, p)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&c.node, "node", false, "drain this host")
	fs.StringVar(&c.question.Reason, "reason", "", "why, for those who look: 200 bytes at most")
	fs.BoolVar(&c.wait, "wait", false, "print what is left, until nothing is")
	fs.DurationVar(&c.question.Timeout, "timeout", 0, "after what time close_connections applies: 1s to 168h; 0: never (default)")
	fs.BoolVar(&c.json, "json", false, "print what is drained as a JSON array")
	return cmd
}

// validate reads the arguments, and returns what cannot be meant.
func (c *drainCall) validate(args []string) (err error) {
	q := &c.question
	c.list = len(args) == 0 && !c.node
	switch {
	case c.list && (c.wait || q.Reason != "" || q.Timeout != 0 || q.NoLimit):
		return errors.New("what is to be drained? want an address, NAME/ADDRESS or --node")
	case c.json && !c.list:
		return errors.New("--json is for what is drained, without a target")
	case c.list:
		return nil
	}
	if q.Target, err = targetOf(args, c.node); err != nil {
		return err
	}
	return q.Check()
}

// targetOf returns what an argument or --node means.
func targetOf(args []string, node bool) (conditions.DrainTarget, error) {
	switch {
	case node && len(args) > 0:
		return conditions.DrainTarget{}, errors.New("--node goes without an address")
	case node:
		return conditions.DrainTarget{Node: true}, nil
	case len(args) == 0:
		return conditions.DrainTarget{}, errors.New("what is drained? want an address, NAME/ADDRESS or --node")
	case args[0] == (conditions.DrainTarget{Node: true}).String():
		return conditions.DrainTarget{}, errors.New("this host is --node")
	}
	return conditions.ParseDrainTarget(args[0])
}

// listDrains prints what is drained.
func (p *program) listDrains(cmd *cobra.Command, asJSON bool) error {
	var list []conditions.Drained
	if err := control.NewClient(p.dirs.run).Ask(cmd.Context(), control.DrainPath, nil, &list); err != nil {
		return reached(err)
	}
	if asJSON {
		return json.NewEncoder(p.stdout).Encode(list)
	}
	return control.WriteDrains(p.stdout, list, time.Now())
}

// run drains, and waits for what is left if that is wanted.
func (c *drainCall) run(cmd *cobra.Command, p *program) error {
	var d control.DrainAnswer
	if err := p.tell(cmd, control.DrainPath, c.question, &d); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(p.stdout, control.DrainedLine(&d.Drained, time.Now())); err != nil {
		return err
	}
	if d.Target.Node {
		for _, line := range []string{d.HeardLine(), d.RoutesLine()} {
			if line == "" {
				continue
			}
			if _, err := fmt.Fprintln(p.stdout, line); err != nil {
				return err
			}
		}
	}
	if !c.wait {
		return nil
	}
	w := drainWait{
		program: p, target: d.Target, interval: waitInterval, patience: waitPatience,
		ask: func(r *control.Remaining) error {
			return control.NewClient(p.dirs.run).Ask(cmd.Context(), control.LeftPath, url.Values{control.TargetKey: {d.Target.String()}}, r)
		},
	}
	return w.run(cmd.Context())
}

func undrainCommand(p *program) *cobra.Command {
	var node bool
	var q control.Undrain
	cmd := &cobra.Command{
		Use:   "undrain ADDRESS | [NAMESPACE/]NAME/ADDRESS | --node",
		Short: "End a drain: new connections again",
		Long: `Undrain ends what svcproxy drain began, by the same words: an endpoint gets new
connections again, this host is healthy to load balancers again. That the target is not
drained is an error. Where another drain still covers an endpoint, of one service or of
all, that is said.`,
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			q.Target, err = targetOf(args, node)
			p.working = err == nil
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var over control.Undrained
			if err := p.tell(cmd, control.UndrainPath, q, &over); err != nil {
				return err
			}
			_, err := fmt.Fprintln(p.stdout, &over)
			return err
		},
	}
	cmd.Flags().BoolVar(&node, "node", false, "this host")
	return cmd
}
