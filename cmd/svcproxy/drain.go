package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/conditions"
)

func drainCommand(p *program) *cobra.Command {
	var q control.Drain
	var node, wait, asJSON, list bool
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
		PreRunE: func(cmd *cobra.Command, args []string) (err error) {
			q.NoLimit = cmd.Flags().Changed("timeout") && q.Timeout == 0
			list = len(args) == 0 && !node
			switch {
			case list && (wait || q.Reason != "" || q.Timeout != 0 || q.NoLimit):
				err = errors.New("what is to be drained? want an address, NAME/ADDRESS or --node")
			case asJSON && !list:
				err = errors.New("--json is for what is drained, without a target")
			case !list:
				if q.Target, err = targetOf(args, node); err == nil {
					err = q.Check()
				}
			}
			return p.usage(err)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !list {
				return p.drain(cmd, q, wait)
			}
			var drained []conditions.Drained
			if err := control.NewClient(p.dirs.run).Ask(cmd.Context(), control.DrainPath, nil, &drained); err != nil {
				return reached(err)
			}
			if asJSON {
				return json.NewEncoder(p.stdout).Encode(drained)
			}
			return control.WriteDrains(p.stdout, drained, time.Now())
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&node, "node", false, "drain this host")
	fs.StringVar(&q.Reason, "reason", "", "why, for those who look: 200 bytes at most")
	fs.BoolVar(&wait, "wait", false, "print what is left, until nothing is")
	fs.DurationVar(&q.Timeout, "timeout", 0, "after what time close_connections applies: 1s to 168h; 0: never (default)")
	fs.BoolVar(&asJSON, "json", false, "print what is drained as a JSON array")
	return cmd
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

// drain drains, and waits for what is left if that is wanted.
func (p *program) drain(cmd *cobra.Command, q control.Drain, wait bool) error {
	var d control.DrainAnswer
	if err := p.tell(cmd, control.DrainPath, q, &d); err != nil {
		return err
	}
	lines := []string{control.DrainedLine(&d.Drained, time.Now())}
	if d.Target.Node {
		lines = append(lines, d.HeardLine(), d.RoutesLine())
	}
	for _, line := range lines {
		if line == "" {
			continue
		}
		if _, err := fmt.Fprintln(p.stdout, line); err != nil {
			return err
		}
	}
	if !wait {
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
	var q control.Drain
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
			return p.usage(err)
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

const (
	// waitInterval is how often drain --wait looks.
	waitInterval = time.Second

	// waitPatience is for how long a daemon may not answer meanwhile, as it is started again.
	waitPatience = 2 * time.Minute

	// waitClosing is how long after the deadline connections may still be there.
	waitClosing = 10 * time.Second

	// waitEmpty is how many looks in a row have to find nothing: a connection that was on its
	// way to the endpoint when it was drained is seen once it is answered.
	waitEmpty = 2
)

// A drainWait is a drain --wait.
type drainWait struct {
	*program
	target             conditions.DrainTarget
	ask                func(*control.Remaining) error
	interval, patience time.Duration

	answered time.Time // last
	text     string    // of the line printed last
	looked   time.Time // what was answered last
	empty    int       // looks in a row that found nothing
}

// run prints what is left until nothing is.
func (w *drainWait) run(ctx context.Context) error {
	w.answered = time.Now()
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for {
		over, err := w.poll(time.Now())
		if ctx.Err() != nil {
			return w.end(fmt.Errorf("interrupted: %s stays drained", control.TargetName(w.target)))
		}
		if over || err != nil {
			return w.end(err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// poll looks once, and reports whether nothing is left to wait for.
func (w *drainWait) poll(now time.Time) (over bool, err error) {
	var left control.Remaining
	switch err := w.ask(&left); {
	case errors.Is(err, control.ErrUnreachable) && now.Sub(w.answered) < w.patience:
		w.empty = 0
		return false, w.print("not known: svcproxy does not answer")
	case err != nil:
		return false, reached(err)
	case !left.Drained:
		return false, fmt.Errorf("%s is not drained any more", control.TargetName(w.target))
	}
	w.answered = now
	switch {
	case !left.None():
		w.empty = 0
	case !left.Looked.Equal(w.looked): // not the same look again
		w.empty++
	}
	w.looked = left.Looked
	if err := w.print(left.String()); err != nil || w.empty >= waitEmpty {
		return true, err
	}
	if !left.Until.IsZero() && now.After(left.Until.Add(waitClosing)) && left.Unknown == "" && w.empty == 0 {
		return false, fmt.Errorf("the time is over, and these connections go on: %s", &left)
	}
	return false, nil
}

// print prints what is left where that is new; on a terminal, over the line before.
func (w *drainWait) print(text string) error {
	if text == w.text {
		return nil
	}
	w.text = text
	format := "left: %s\n"
	if size, is := terminalSize(w.stdout); is {
		format, text = "\r\x1b[Kleft: %s", control.Cut(text, int(size.Col)-len("left: ")-1)
	}
	_, err := fmt.Fprintf(w.stdout, format, text)
	return err
}

// end ends the line of a terminal.
func (w *drainWait) end(err error) error {
	if isTerminal(w.stdout) && w.text != "" {
		fmt.Fprintln(w.stdout)
	}
	return err
}
