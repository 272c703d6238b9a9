// Svcproxy gives a plain Linux host virtual service addresses: it reads services
// from files and keeps the kernel in step. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/source"
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

// Exit codes.
const (
	exitFailed      = 1 // faults found, or the work failed
	exitUsage       = 2 // wrong usage
	exitUnreachable = 3 // a file or the daemon could not be reached
)

// A codedError ends the program with a code of its own.
type codedError struct {
	code int
	err  error // nil: all is said already
}

func (e *codedError) Error() string { return fmt.Sprint(e.err) }
func (e *codedError) Unwrap() error { return e.err }

// unreachable returns err as one about something that could not be reached.
func unreachable(err error) error { return &codedError{exitUnreachable, err} }

// A program is one call of svcproxy.
type program struct {
	stdout, stderr io.Writer
	log            *journal.Queue                      // of run, which stderr is then; else nil
	dirs           struct{ config, state, run string } // they tell instances apart
	working        bool                                // arguments and flags were good
	isProgram      bool                                // it is the process, which may start itself again
}

// queueLog has this process wait for what takes its log no longer than for a moment at its end. The message with which a
// command fails comes last, and so goes the same way.
func (p *program) queueLog() {
	p.log = journal.NewQueue(p.stderr)
	p.stderr = p.log
	log.SetOutput(p.log) // of libraries
}

// endLog writes what is queued, if there is a queue.
func (p *program) endLog() {
	if p.log == nil {
		return
	}
	p.log.Close()
	log.SetOutput(os.Stderr)
}

// usage has err, unless it is nil, end the program as wrong usage.
func (p *program) usage(err error) error {
	p.working = err == nil
	return err
}

// reached gives errors that say that the daemon could not be asked their exit code.
func reached(err error) error {
	if errors.Is(err, control.ErrUnreachable) || errors.Is(err, control.ErrNoRights) {
		return unreachable(err)
	}
	return err
}

// tell has the daemon do something.
func (p *program) tell(cmd *cobra.Command, path string, question, answer any) error {
	return reached(control.NewClient(p.dirs.run).Tell(cmd.Context(), path, question, answer))
}

// report prints faults to standard error, one a line.
func (p *program) report(faults []source.Fault, asJSON bool) error {
	out := json.NewEncoder(p.stderr)
	for _, f := range faults {
		var err error
		if asJSON {
			err = out.Encode(f)
		} else {
			_, err = fmt.Fprintln(p.stderr, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// terminalSize returns the size of the terminal that w is, if it is one.
func terminalSize(w any) (unix.Winsize, bool) {
	f, ok := w.(*os.File)
	if !ok {
		return unix.Winsize{}, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return unix.Winsize{}, false
	}
	return *size, true
}

func isTerminal(w any) bool {
	_, is := terminalSize(w)
	return is
}

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version string

func versionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.stdout, "svcproxy %s, commit %s, %s %s/%s\n",
				release(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// release returns the version, or what the Go command knows of it.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// commit returns the commit this was built from, with "+dirty" where the tree had changes.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return revision + dirty
}
