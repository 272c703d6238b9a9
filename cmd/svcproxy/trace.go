package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/configs"
)

func traceCommand(p *program) *cobra.Command {
	var o trace.Options
	var howLong time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "trace [SRC] [DST[:PORT][/PROTO]]",
		Short: "New connections to services as they come, and what becomes of each",
		Long: `Trace shows each new connection to an address of a service, or to DST whatever it
is: when, from where, to what, which service, and what this host did with it:
balanced to which endpoint, masqueraded or not; refused; dropped, and why; passed
on untouched. What it says it has seen; why that is so, the services say.

SRC is an address or a prefix, DST an address with or without port and protocol;
"any" stands for all of them. One address alone is the destination if a service
has it, and otherwise the source.

It ends when it is interrupted, after --count lines, or --for a time. The kernel
shows it 200 new connections a second at most; how many were left out it says.
For as long as it runs there is a table svcproxy-trace-PID in nftables, whatever
the mode, which goes with the process (on a kernel before 5.12: with the next
start of the daemon or cleanup, where the process was killed). Its rules need
connection tracking: where nothing else has switched that on, trace does, for all
packets, while it runs. -v adds the chains that a packet met; iptables-legacy
cannot show its own.`,
		Args: cobra.MaximumNArgs(2),
		PreRunE: func(_ *cobra.Command, args []string) error {
			_, err := trace.ParseFilter(args, func(netip.Addr) bool { return true })
			if err == nil && (o.Count < 0 || howLong < 0) {
				err = errors.New("--count and --for cannot be negative")
			}
			return p.usage(err)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mayAdminister("trace"); err != nil {
				return err
			}
			return p.trace(cmd.Context(), args, o, howLong, asJSON)
		},
	}
	cmd.Flags().IntVar(&o.Count, "count", 0, "end after so many lines; 0: do not")
	cmd.Flags().DurationVar(&howLong, "for", 0, "end after this time; 0: do not")
	cmd.Flags().BoolVarP(&o.Chains, "verbose", "v", false, "show the chains of nf_tables, and of iptables-nft, that packets met")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each connection as a JSON object")
	return cmd
}

// trace shows connections until it is told to end. A terminal that closes, and a reader
// of its output that ends, only end it: what it has in the kernel is to be removed.
func (p *program) trace(ctx context.Context, args []string, o trace.Options, howLong time.Duration, asJSON bool) (err error) {
	signal.Ignore(unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGHUP)
	defer stop()
	if o.Names, o.Filter, err = p.names(ctx, args); err != nil {
		return err
	}
	out := json.NewEncoder(p.stdout)
	o.Line = func(l *trace.Line) error {
		if asJSON {
			return out.Encode(l)
		}
		return l.WriteText(p.stdout)
	}
	o.Note = func(text string) { fmt.Fprintf(p.stderr, "svcproxy trace: %s\n", text) }
	if o.Names.Mode == "" {
		o.Note("svcproxy does not run here: services are those of the files in " + p.dirs.config)
	} else {
		o.Ask = func(ctx context.Context, revision uint64) (*trace.Names, error) {
			return p.askNames(ctx, url.Values{"revision": {strconv.FormatUint(revision, 10)}}, o.Filter.Destination)
		}
	}
	if !asJSON {
		_, err = fmt.Fprintln(p.stdout, trace.Header)
	}
	if howLong > 0 { // from here on: an answer that takes as long is no failure
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, howLong)
		defer cancel()
	}
	if err == nil {
		err = trace.Run(ctx, o)
	}
	if errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// names returns what services there are, and what the arguments mean then: from the daemon or,
// where none runs, from files.
func (p *program) names(ctx context.Context, args []string) (*trace.Names, trace.Filter, error) {
	filter, err := trace.ParseFilter(args, func(netip.Addr) bool { return true })
	if err != nil {
		return nil, filter, err
	}
	names, err := p.askNames(ctx, url.Values{}, filter.Destination)
	if errors.Is(err, control.ErrUnreachable) {
		held, err := p.checker(new(configs.Flags)).Held() // what a daemon would use of the configuration directory
		if err != nil {
			return nil, filter, unreachable(err)
		}
		if err := held.Look(); err != nil {
			return nil, filter, err
		}
		names = trace.NamesOf(held.Resolve(), netip.Addr{})
	} else if err != nil {
		return nil, filter, err
	}
	filter, err = trace.ParseFilter(args, names.HasAddress)
	if err == nil && !filter.Destination.IsValid() && names.Mode != "" { // one address, which is the source
		names, err = p.askNames(ctx, url.Values{}, netip.Addr{})
	}
	return names, filter, err
}

func (p *program) askNames(ctx context.Context, q url.Values, only netip.Addr) (*trace.Names, error) {
	if only.IsValid() {
		q.Set("address", only.String())
	}
	n := new(trace.Names)
	err := control.NewClient(p.dirs.run).Ask(ctx, trace.Path, q, n)
	return n, err
}
