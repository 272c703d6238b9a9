package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// watchEvery is how often status --watch asks.
const watchEvery = 2 * time.Second

// A statusQuestion is what status is asked for.
type statusQuestion struct {
	which         source.Selection
	all, problems bool
	check, watch  bool
	sort, format  string
}

func statusCommand(p *program) *cobra.Command {
	var q statusQuestion
	cmd := &cobra.Command{
		Use:   "status [NAME|PATTERN ...]",
		Short: "What serves, what does not and why, from the running daemon",
		Long: `Status asks the daemon that has the run directory how it does: how many addresses
serve, which files are not used as they stand, what is wrong and why. With names,
or patterns such as 'prod/*', 'web-?' or, of labels, 'team=web' and 'team=*', it shows
those services and their endpoints.

-o wide shows every service, endpoint and file; -o json all of that for programs,
or with --problems the summary.

--check prints nothing and exits with 0 when every address of the named services
serves, by endpoints that pass their check if they have one, or, without names, when
there is no problem. Otherwise it says why not, and
exits with 1, or with 3 when no daemon answers within 2 s. A session of BGP that is
down is a problem, and of no named service: name services in a track script, or a
router that fails takes the addresses from all hosts that ask it.`,
		Example: `  svcproxy status --check web          # a track_script of keepalived
  svcproxy status 'prod/*' --sort ready`,
		Args: cobra.ArbitraryArgs,
		PreRunE: func(_ *cobra.Command, args []string) error {
			q.which = args
			return p.usage(q.validate())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return reached(q.answer(cmd.Context(), p))
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&q.format, "output", "o", "table", "table, wide or json")
	fs.BoolVarP(&q.watch, "watch", "w", false, "show it again every 2 s")
	fs.BoolVar(&q.all, "all", false, "show every service")
	fs.BoolVar(&q.problems, "problems", false, "show every problem, broken file and warning")
	fs.StringVar(&q.sort, "sort", "", "show services in the order of: "+strings.Join(control.SortKeys(), ", "))
	fs.BoolVar(&q.check, "check", false, "exit with 0 if all serves")
	return cmd
}

// validate returns what cannot be meant.
func (q *statusQuestion) validate() error {
	switch formats := []string{"table", "wide", "json"}; {
	case !slices.Contains(formats, q.format):
		return fmt.Errorf("unknown output %q; want table, wide or json", q.format)
	case q.sort != "" && !slices.Contains(control.SortKeys(), q.sort):
		return control.SortServices(nil, q.sort)
	case q.check && (q.all || q.problems || q.watch || q.sort != "" || q.format != "table"):
		return errors.New("--check goes with names only")
	case q.problems && (q.all || q.sort != "" || len(q.which) > 0):
		return errors.New("--problems goes with neither names nor --all nor --sort")
	}
	return q.which.Check()
}

// answer answers once, or until it is interrupted or the daemon is gone.
func (q *statusQuestion) answer(ctx context.Context, p *program) error {
	c := control.NewClient(p.dirs.run)
	switch {
	case q.check:
		why, err := c.Check(ctx, q.which)
		if err == nil && why != "" { // why not all serves
			err = errors.New(why)
		}
		return err
	case q.watch:
		return q.repeat(ctx, c, p)
	}
	return q.write(ctx, c, p.stdout)
}

// write asks, and writes the answer: all that is known of the services meant, services, each with its endpoints where
// they were named, or a summary.
func (q *statusQuestion) write(ctx context.Context, c *control.Client, w io.Writer) error {
	switch {
	case q.format != "table" && !q.problems:
		st, err := c.StatusOf(ctx, q.which)
		if err == nil {
			err = q.order(st.Loop.Services)
		}
		switch {
		case err != nil:
			return err
		case q.format == "json":
			return json.NewEncoder(w).Encode(st)
		}
		return st.WriteTable(w, time.Now())
	case q.all || q.sort != "" || len(q.which) > 0:
		list, err := c.Services(ctx, q.which)
		if err == nil {
			err = q.order(list)
		}
		switch {
		case err != nil:
			return err
		case len(q.which) == 0:
			return control.WriteAddresses(w, list)
		}
		return control.WriteServices(w, list, time.Now())
	}
	most := control.Few
	if q.problems {
		most = control.All
	}
	s, err := c.Summary(ctx, most)
	if err != nil {
		return err
	}
	if q.format == "json" {
		return json.NewEncoder(w).Encode(s)
	}
	return s.WriteTable(w, time.Now())
}

// order sorts services. It is an error that none is meant by a name.
func (q *statusQuestion) order(list []report.ServiceStatus) error {
	if lost := control.Missing(q.which, list); lost != "" {
		return errors.New(lost)
	}
	if q.sort == "" {
		return nil
	}
	return control.SortServices(list, q.sort)
}

// repeat writes the answer again and again; on a terminal, over the one before it.
func (q *statusQuestion) repeat(ctx context.Context, c *control.Client, p *program) error {
	screen := control.NewScreen(p.stdout)
	for {
		var text bytes.Buffer
		err := q.write(ctx, c, &text)
		switch size, isTerminal := terminalSize(p.stdout); {
		case err != nil:
			return err
		case isTerminal && q.format != "json":
			err = screen.Show(text.Bytes(), int(size.Row), int(size.Col))
		default:
			_, err = p.stdout.Write(text.Bytes())
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}
