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

func topCommand(p *program) *cobra.Command {
	var q traffic.Query
	var format string
	var interval time.Duration
	var count int
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
			q.Names = names
			q.Endpoints = q.Endpoints || len(names) > 0
			err := q.Check()
			switch formats := []string{"table", "json"}; {
			case !slices.Contains(formats, format):
				err = fmt.Errorf("unknown output %q; want %s", format, source.Either(formats))
			case interval < time.Second:
				err = fmt.Errorf("an interval of %s is too short; want 1s at least", interval)
			case count < 0:
				err = fmt.Errorf("%d times is no number of times", count)
			}
			return p.usage(err)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.top(cmd.Context(), q, format == "json", interval, count)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&format, "output", "o", "table", "table or json, one object a line")
	fs.StringVar(&q.Sort, "sort", "conns", "first those with the most: conns, active or bytes; or name")
	fs.BoolVar(&q.Endpoints, "endpoints", false, "show endpoints too")
	fs.IntVar(&q.Limit, "limit", traffic.DefaultLimit, "how many services to show")
	fs.DurationVar(&interval, "interval", 2*time.Second, "time between two readings")
	fs.IntVar(&count, "count", 0, "end after showing it so many times; 0: never")
	return cmd
}

// top shows traffic again and again, until it is interrupted or the daemon is gone. The
// first reading has no rates: it is shown on a terminal only.
func (p *program) top(ctx context.Context, q traffic.Query, asJSON bool, interval time.Duration, count int) error {
	client := control.NewClient(p.dirs.run)
	terminal := !asJSON && isTerminal(p.stdout)
	for shown := 0; ; {
		var r traffic.Report
		if err := client.Ask(ctx, top.Path, top.Values(q), &r); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return reached(err)
		}
		wait := time.Second
		if r.Over > 0 || terminal {
			if err := showTop(p.stdout, &r, asJSON, terminal); err != nil {
				return err
			}
			if shown++; shown == count {
				return nil
			}
			wait = interval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func showTop(w io.Writer, r *traffic.Report, asJSON, terminal bool) error {
	if asJSON {
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
