package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
)

func historyCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "history [FILE]",
		Short: "Accepted versions of service files, from the daemon or the state directory",
		Long: `History shows the versions of service files that were accepted, the newest first:
the number, by which rollback knows it, when it was accepted, who owned the file, how
many services it had, and how many of them were new (+), gone (-) or other than
before (~). One version of each file is in use, unless the file was removed. FILE is
the name of a file, or the URL of one that a server has.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []keep.Revision
			name := append(args, "")[0]
			err := control.NewClient(p.dirs.run).Ask(cmd.Context(), "/v1/history", url.Values{"file": {name}}, &list)
			if errors.Is(err, control.ErrUnreachable) { // no daemon runs: what it would read
				if list, err = sources.Histories(p.dirs.state, name); err != nil {
					return unreachable(err)
				}
			}
			if err != nil {
				return reached(err)
			}
			if asJSON {
				return json.NewEncoder(p.stdout).Encode(list)
			}
			return control.WriteHistory(p.stdout, list)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print them as a JSON array")
	return cmd
}

func rollbackCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "rollback [FILE] VERSION",
		Short: "Use an older version of a service file until the file changes again",
		Long: `Rollback has the daemon use a version that svcproxy history shows in place of the
present file, also over restarts, until the file changes again. The file itself is
left as it is, and status calls it rolled back. With FILE, a name or a URL, the version
must be one of it. Each source of service files counts its own versions: FILE is needed
where two have the number.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			number, err := strconv.Atoi(args[len(args)-1])
			if err != nil || number < 1 {
				return p.usage(fmt.Errorf("unknown version %q; want a number as svcproxy history shows it", args[len(args)-1]))
			}
			q, r := control.Rollback{Number: number}, keep.Revision{}
			if len(args) == 2 {
				q.File = args[0]
			}
			if err := p.tell(cmd, "/v1/rollback", q, &r); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "%q: version %d is used until the file changes\n", r.File, r.Number)
			return err
		},
	}
}

func confirmCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "confirm",
		Short: "Keep what svcproxy apply made so, or let changes through that are held",
		Long: `Confirm ends the time after which svcproxy apply goes back: all stays as it is.
Where no apply is under way, it lets all changes of service files through that are held,
and answers of servers that are, which svcproxy status names. That there is nothing to confirm is an error: it is then
too late, or all is in use.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var c control.Confirmation
			if err := p.tell(cmd, "/v1/confirm", struct{}{}, &c); err != nil {
				return err
			}
			if c.Applied {
				fmt.Fprintln(p.stdout, "confirmed: what was applied stays")
			}
			printReleased(p.stdout, c.Files, c.Faults)
			for _, name := range c.Sources {
				fmt.Fprintf(p.stdout, "let through: what the server of source %q answers\n", name)
			}
			if c.Held > 0 {
				fmt.Fprintf(p.stdout, "%d files have changes that are held: confirm again to let them through\n", c.Held)
			}
			return nil
		},
	}
}

// printReleased names files whose changes are not held any more, and says why those that cannot be used are not.
func printReleased(w io.Writer, files []string, faults []source.Fault) {
	for _, name := range files {
		fmt.Fprintf(w, "let through: %q\n", name)
	}
	for _, f := range faults {
		fmt.Fprintf(w, "cannot be used: %s\n", f)
	}
}

func applyCommand(p *program) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "apply --timeout DURATION",
		Short: "Take all changes of service files, and go back unless confirm follows",
		Long: `Apply reads all service files again and lets all changes through that are held. What
is in use then, and what changes later, goes back to what was in use before, unless
svcproxy confirm follows within the timeout; also when the daemon ends or the host
stops meanwhile. The files themselves are left as they are.

For those who edit a host through its own services. With [guard] apply = "manual" in
svcproxy.toml changes wait for it: edit, apply, see, confirm. With "auto", changes are
taken when they are found, so apply comes first: apply, edit, see, confirm.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if timeout < file.MinTrial || timeout > file.MaxTrial {
				return p.usage(fmt.Errorf("timeout %s; want %s to %s", timeout, file.MinTrial, file.MaxTrial))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var a file.Application
			if err := p.tell(cmd, "/v1/apply", control.Apply{Timeout: timeout}, &a); err != nil {
				return err
			}
			printReleased(p.stdout, a.Files, a.Faults)
			if len(a.Files)+len(a.Faults) == 0 {
				fmt.Fprintln(p.stdout, "no change was held: the files are in use as they stand")
			}
			_, err := fmt.Fprintf(p.stdout, "all that changes goes back at %s unless svcproxy confirm follows\n", a.Until.Local().Format("15:04:05"))
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "when it goes back: 1s to 24h")
	return cmd
}
