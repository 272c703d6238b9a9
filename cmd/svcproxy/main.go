// Svcproxy gives a plain Linux host virtual service addresses: it reads services
// from files and keeps the kernel in step. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/journal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	os.Exit((&program{stdout: os.Stdout, stderr: os.Stderr, isProgram: true}).run(ctx, os.Args[1:]))
}

// run does what args say and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	defer p.endLog() // also where it panics
	root := p.command()
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	switch coded, isCoded := errors.AsType[*codedError](err); {
	case !p.working:
		fmt.Fprintf(p.stderr, "svcproxy: %v\nRun 'svcproxy --help' for usage.\n", err)
		return exitUsage
	case isCoded:
		if coded.err != nil {
			fmt.Fprintln(p.stderr, journal.Failure(p.stderr, coded.err))
		}
		return coded.code
	}
	fmt.Fprintln(p.stderr, journal.Failure(p.stderr, err))
	return exitFailed
}

func (p *program) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "svcproxy",
		Short: "Kubernetes' service dataplane for a plain Linux host",
		Long: `svcproxy gives a plain Linux host the Kubernetes service dataplane without
Kubernetes. Services live in TOML or JSON files; svcproxy watches them and keeps
the kernel in step. Packets never pass through svcproxy: when it stops, traffic
goes on.

Exit codes: 0 good; 1 faults found or the work failed; 2 wrong usage; 3 a file
or the daemon could not be reached.`,
		Version:           release(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { p.working = true },
	}
	root.InitDefaultVersionFlag() // it takes no value, which cobra must know before it looks for the command
	root.SetVersionTemplate("svcproxy {{.Version}}\n")
	fs := root.PersistentFlags()
	fs.StringVar(&p.dirs.config, "config-dir", "/etc/svcproxy", "directory of svcproxy.toml and the service files")
	fs.StringVar(&p.dirs.state, "state-dir", "/var/lib/svcproxy", "directory of what must survive a restart")
	fs.StringVar(&p.dirs.run, "run-dir", "/run/svcproxy", "directory of the control socket and of what holds until the next boot")
	root.AddCommand(runCommand(p), checkCommand(p), planCommand(p), statusCommand(p), explainCommand(p), topCommand(p), traceCommand(p), cleanupCommand(p),
		drainCommand(p), undrainCommand(p),
		historyCommand(p), rollbackCommand(p), confirmCommand(p), applyCommand(p),
		convertCommand(p), initCommand(p), configCommand(p), versionCommand(p))
	for _, command := range more {
		root.AddCommand(command(p))
	}
	return root
}

// more are commands that only some builds have.
var more []func(*program) *cobra.Command
