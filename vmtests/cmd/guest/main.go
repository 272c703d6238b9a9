// Guest runs one program, such as a test binary, as root in a guest:
//
//	go run ./vmtests/cmd/guest [flags] -- PROGRAM [ARGUMENT ...]
//
// PROGRAM is a static executable of this host, or a name without a slash for one
// of the guest's own. Its output is shown while it runs, and its exit code
// becomes guest's; 124 says that its time was over, 125 that the guest died or
// could not be booted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

const (
	exitTimedOut = 124 // as timeout(1) has it
	exitNoGuest  = 125
)

type options struct {
	timeout time.Duration
	cpus    int
	memory  int
	env     list
	files   list
}

// A list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	var o options
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "ends the guest; making its image, the first time, counts too")
	flag.IntVar(&o.cpus, "cpus", 2, "processors of the guest")
	flag.IntVar(&o.memory, "memory", 1024, "memory of the guest, in MiB")
	flag.Var(&o.env, "env", "`KEY=VALUE` of the program's environment (may be repeated)")
	flag.Var(&o.files, "file", "`PATH` of a file or directory, or PATH=PATH-IN-GUEST, to be put into the program's directory (may be repeated)")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, o, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(ctx context.Context, o options, args []string) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	cfg := guest.Config{CPUs: o.cpus, Memory: o.memory}
	cmd := guest.Command{Args: args, Env: o.env, Dir: guest.Home}
	for _, f := range o.files {
		from, to, named := strings.Cut(f, "=")
		if !named {
			to = filepath.Base(from)
		}
		if cfg.Files, err = guest.AppendTree(cfg.Files, from, path.Join(guest.Home, to)); err != nil {
			return exitNoGuest, err
		}
	}
	if program := args[0]; strings.Contains(program, "/") {
		cmd.Args[0] = path.Join(guest.Home, filepath.Base(program))
		if cfg.Files, err = guest.AppendTree(cfg.Files, program, cmd.Args[0]); err != nil {
			return exitNoGuest, err
		}
	}
	code, err = guest.Run(ctx, cfg, cmd, os.Stdout)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimedOut, err
	case err != nil:
		return exitNoGuest, err
	}
	return code, nil
}
