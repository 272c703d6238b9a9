package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

func checkCommand(p *program) *cobra.Command {
	var asJSON bool
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "check [PATH ... | -]",
		Short: "Read files, print every fault, touch nothing",
		Long: `Check reads files as the daemon would and prints every fault of every file to
standard error, one a line, as FILE:LINE:COLUMN: what is wrong. On a terminal the
line of the file follows, with a mark under the place. Warnings are printed too;
they do not count. Of what has no fault, standard output tells how much it is.

A directory is checked whole, with svcproxy.toml and all clashes between files.
A file in the configuration directory is checked against the others there, any
other one alone. "-" is standard input, TOML or JSON, checked as a file that is
about to be put into the configuration directory. Without PATH the configuration
directory is checked. Of a URL that a server has a service file at, the version that
was last accepted is checked. Shares of [[owners]] go by name and user in the configuration
directory; elsewhere, where no share matches by user, by name; "-" has none, which is a
warning. What a daemon reads is read with the rights of the one that runs
or, where none does, of svcproxy.service, which modes of files bind also as root.

With mode = "auto", files are held to the mode of the daemon that runs. Where none
answers within 2 s, a key that only some modes accept is a warning that names them.

What a file system does not answer within 5 s could not be read.

Exit codes: 0 no faults, or warnings only; 1 faults; 3 something could not be read.`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				paths = []string{p.dirs.config}
			}
			signal.Reset(unix.SIGINT, unix.SIGTERM) // they end it, whatever it waits for
			if p.isProgram && os.Getenv("GOGC") == "" {
				debug.SetGCPercent(checkGC)
			}
			return p.check(cmd.Context(), cmd.InOrStdin(), paths, asJSON, &flags)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each fault as a JSON object")
	flags.Bind(cmd.Flags())
	return cmd
}

// checkGC is how much garbage may gather, in percent of what is in use. With Go's default, 100, a file of the largest size
// with nothing but addresses takes a fifth more memory; less than 50 takes more time and saves little.
const checkGC = 50

// check prints the faults of all paths. One that cannot be read does not keep
// the others from being checked.
func (p *program) check(ctx context.Context, stdin io.Reader, paths []string, asJSON bool, flags *configs.Flags) error {
	c := p.checker(flags)
	c.Stdin = stdin
	c.Host = func(s configs.Settings) report.Snapshot {
		host, _ := node.Surroundings(s) // without rights to look, warnings are fewer
		return host
	}
	c.ModeInUse = sync.OnceValue(func() string { return p.modeInUse(ctx) })
	if p.isProgram {
		p.readAsDaemon(ctx, c, paths)
	}
	result := new(codedError)
	for _, path := range paths {
		r := c.Path(path)
		if err := p.print(r.Faults, asJSON, c); err != nil {
			return err
		}
		switch {
		case r.Unreadable:
			result.code = exitUnreachable
		case source.AnyError(r.Faults):
			result.code = max(result.code, exitFailed)
		case !asJSON: // what was found good, so that nobody takes an empty directory for a good one; faults are all warnings
			found := fmt.Sprintf("service files: %d, services: %d", r.Files, r.Services)
			if filepath.Base(path) == read.SettingsName {
				found = "settings"
			}
			if _, err := fmt.Fprintf(p.stdout, "%s: no faults; %s, warnings: %d\n", path, found, len(r.Faults)); err != nil {
				return err
			}
		}
	}
	if result.code == 0 {
		return nil
	}
	return result
}

// modeWait is how long check waits for the daemon to say its mode, before it goes on without.
const modeWait = 2 * time.Second

// modeInUse returns the mode of the daemon that reads the configuration directory; empty: none says so in time.
func (p *program) modeInUse(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, modeWait)
	defer cancel()
	s, err := control.NewClient(p.dirs.run).Summary(ctx, 0)
	if err != nil || !check.SameDir(s.Settings.ConfigDir, p.dirs.config) {
		return ""
	}
	return s.Settings.Mode
}

// print prints faults, on a terminal with the lines that they are about.
func (p *program) print(faults []source.Fault, asJSON bool, c *check.Checker) error {
	if asJSON || !isTerminal(p.stderr) {
		return p.report(faults, asJSON)
	}
	name, text := "", []byte(nil)
	for _, f := range faults {
		if f.Pos.Line > 0 && f.Pos.File != name { // a fault of a whole file has no excerpt, and its disk may not answer
			name, text = f.Pos.File, c.Text(f.Pos.File)
		}
		if _, err := fmt.Fprint(p.stderr, f, "\n", check.Excerpt(text, f.Pos)); err != nil {
			return err
		}
	}
	return nil
}
