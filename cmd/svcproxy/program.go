package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/source"
)

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
