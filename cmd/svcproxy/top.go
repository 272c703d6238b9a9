package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// A topOptions says what top shows, and how often.
type topOptions struct {
	traffic.Query
	format   string
	interval time.Duration
	count    int
}

// check returns what is wrong with o.
func (o *topOptions) check() error {
	formats := []string{"table", "json"}
	switch {
	case !slices.Contains(formats, o.format):
		return fmt.Errorf("unknown output %q; want %s", o.format, source.Either(formats))
	case o.interval < time.Second:
		return fmt.Errorf("an interval of %s is too short; want 1s at least", o.interval)
	case o.count < 0:
		return fmt.Errorf("%d times is no number of times", o.count)
	}
	return o.Check()
}

func topCommand(p *program) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NAME ...]",
		Short: "Services and endpoints by connections, rates and bytes",
		Long: `Top asks the running daemon which services have connections: how many begin, how
many go on, and, where the kernel counts them, packets and bytes in both directions.
With names, or patterns such as 'prod/*' or, of labels, 'team=web', it shows those
services and their endpoints.
The daemon counts while top runs, and for 15 s after, unless [metrics] traffic has it
count always. In nftables and iptables mode the kernel counts packets only while
net.netfilter.nf_conntrack_acct is 1, as [conntrack] accounting has "svcproxy init" set it.`,
		PreRunE: func(_ *cobra.Command, names []string) error {
			o.Names = names
			o.Endpoints = o.Endpoints || len(names) > 0
			err := o.check()
			p.working = p.working && err == nil
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), p) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&o.format, "output", "o", "table", "table or json, one object a line")
	fs.StringVar(&o.Sort, "sort", "conns", "first those with the most: conns, active or bytes; or name")
	fs.BoolVar(&o.Endpoints, "endpoints", false, "show endpoints too")
	fs.IntVar(&o.Limit, "limit", traffic.DefaultLimit, "how many services to show")
	fs.DurationVar(&o.interval, "interval", 2*time.Second, "time between two readings")
	fs.IntVar(&o.count, "count", 0, "end after showing it so many times; 0: never")
	return cmd
}

// run shows traffic again and again, until it is interrupted or the daemon is gone. The
// first reading has no rates: it is shown on a terminal only.
func (o *topOptions) run(ctx context.Context, p *program) error {
	client := control.NewClient(p.dirs.run)
	terminal := o.format == "table" && isTerminal(p.stdout)
	for shown := 0; ; {
		var r traffic.Report
		if err := client.Ask(ctx, top.Path, top.Values(o.Query), &r); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return reached(err)
		}
		wait := time.Second
		if r.Over > 0 || terminal {
			if err := o.show(p.stdout, &r, terminal); err != nil {
				return err
			}
			if shown++; shown == o.count {
				return nil
			}
			wait = o.interval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (o *topOptions) show(w io.Writer, r *traffic.Report, terminal bool) error {
	if o.format == "json" {
		return json.NewEncoder(w).Encode(r)
	}
	lines := 0
	if terminal {
		size, _ := terminalSize(w)
		lines = max(1, int(size.Row)) - 1 // all is shown where the size is not known
		fmt.Fprint(w, "\x1b[H\x1b[2J")    // home, clear
	}
	return top.Write(w, r, lines)
}
