// Package guest boots virtual machines for tests: a Debian kernel and root file
// system under QEMU, in which programs run as root. Nothing of the host's
// network is involved, and a guest never outlives the process that booted it.
package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"svcproxy.dev/svcproxy/vmtests/internal/agent"
	"svcproxy.dev/svcproxy/vmtests/internal/image"
)

// bootPatience is how long a guest may take to its first answer. Under emulation
// one takes 2.5 s alone on an idle host, and 30 s when three boot systemd on a busy one.
const bootPatience = 3 * time.Minute

// ErrDied says that a guest ended before its time, or never answered: its kernel
// or QEMU crashed, or hangs. What was going on may be tried again.
var ErrDied = errors.New("the guest died")

type (
	// A Command is a program to run in a guest.
	Command = agent.Command
	// A File is a file to put into a guest.
	File = agent.File
)

// A Config says what to boot.
type Config struct {
	Name   string // in errors, and for addresses of network cards; "": guest
	System bool   // systemd is process 1; else the agent runs alone
	Files  []File // there before the first process
	CPUs   int    // 0: 2
	Memory int    // in MiB, 0: 1024
	Disk   string // an ext4 on which changes last; "": they end with the guest

	// Setup is a shell script that runs before anything else.
	Setup string

	// Networks have the guest's network cards, eth0 and on.
	Networks []*Network

	// Again hears why the guest is booted once more, where that is not nil.
	Again func(error)

	patience time.Duration // 0: bootPatience
}

func (cfg *Config) again(err error) {
	if cfg.Again != nil {
		cfg.Again(err)
	}
}

// A Guest is a virtual machine. It may be used by several goroutines.
type Guest struct {
	name    string
	ctx     context.Context // ends the guest
	machine *machine
	agent   *agent.Client
}

// Boot boots a guest that ends with ctx, and once more when it dies before it answers.
// The first one on a host takes minutes: its image is made.
func Boot(ctx context.Context, cfg Config) (*Guest, error) {
	g, err := bootOnce(ctx, cfg)
	if !errors.Is(err, ErrDied) {
		return g, err
	}
	cfg.again(err)
	return bootOnce(ctx, cfg)
}

func bootOnce(ctx context.Context, cfg Config) (*Guest, error) {
	if cfg.Name == "" {
		cfg.Name = "guest"
	}
	img, err := image.Get(ctx)
	if err != nil {
		return nil, err
	}
	initrd, err := makeInitrd(ctx, img, cfg)
	if err != nil {
		return nil, fmt.Errorf("making the initial root of %s: %w", cfg.Name, err)
	}
	m, err := start(ctx, cfg, img, initrd)
	if err != nil {
		return nil, fmt.Errorf("starting QEMU for %s: %w", cfg.Name, err)
	}
	return meet(ctx, cfg.Name, m, cmp.Or(cfg.patience, bootPatience))
}

// Attach meets a machine that another program has booted: the agent at the standard
// input and output of a program, as ssh has it. It ends with ctx; the machine goes on.
func Attach(ctx context.Context, name string, args ...string) (*Guest, error) {
	m, err := attach(ctx, args)
	if err != nil {
		return nil, fmt.Errorf("starting %q for %s: %w", args, name, err)
	}
	return meet(ctx, name, m, bootPatience)
}

// meet waits for the agent of a machine.
func meet(ctx context.Context, name string, m *machine, patience time.Duration) (*Guest, error) {
	g := &Guest{name: name, ctx: ctx, machine: m}
	meetCtx, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	var err error
	if g.agent, err = agent.Connect(meetCtx, m.serial); err != nil {
		if errors.Is(err, errSilent) {
			m.kill() // or it would go on
		}
		return nil, errors.Join(g.explain(err), g.Close())
	}
	return g, nil
}

// errSilent ends the wait for the agent of a machine.
var errSilent = errors.New("it has not answered")

// Run runs a program to its end and returns its exit code, 128 and the signal
// when one ended it. Output, standard and error, is written while it runs.
func (g *Guest) Run(ctx context.Context, cmd Command, output io.Writer) (code int, err error) {
	code, err = g.agent.Run(ctx, cmd, output)
	return code, g.explain(err)
}

// Output runs a program that must succeed, and returns its output.
func (g *Guest) Output(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	code, err := g.Run(ctx, Command{Args: args}, &out)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q in %s: exit code %d\n%s", args, g.name, code, out.String())
	}
	return out.String(), err
}

// WriteFile writes a file by renaming it into place.
func (g *Guest) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return g.explain(g.agent.WriteFile(ctx, path, data, mode))
}

// ReadFile reads a file.
func (g *Guest) ReadFile(ctx context.Context, path string) ([]byte, error) {
	data, err := g.agent.ReadFile(ctx, path)
	return data, g.explain(err)
}

// Close ends the guest, as a power cut does.
func (g *Guest) Close() error { return g.machine.close() }

// Console returns the end of what the kernel has said, or the program that Attach has started.
func (g *Guest) Console() string { return g.machine.console.String() }

// explain says of an error whether the guest died, or its time was over.
func (g *Guest) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, agent.ErrGone) && g.ctx.Err() != nil:
		return fmt.Errorf("%s: %w", g.name, context.Cause(g.ctx))
	case errors.Is(err, errSilent), errors.Is(err, agent.ErrGone):
		<-g.machine.ended
		return fmt.Errorf("%s: %w: %w; its process: %v, after %v, in which it ran for %v\n%s",
			g.name, ErrDied, err, g.machine.err, g.machine.lived, g.machine.ran, g.Console())
	}
	return fmt.Errorf("%s: %w", g.name, err)
}

// Run boots a guest for one program, and once more when that guest dies. It returns
// the program's exit code.
func Run(ctx context.Context, cfg Config, cmd Command, output io.Writer) (code int, err error) {
	code, err = runOnce(ctx, cfg, cmd, output)
	if !errors.Is(err, ErrDied) {
		return code, err
	}
	fmt.Fprintf(output, "%v\ntrying once more\n", err)
	cfg.again(err)
	return runOnce(ctx, cfg, cmd, output)
}

func runOnce(ctx context.Context, cfg Config, cmd Command, output io.Writer) (code int, err error) {
	g, err := bootOnce(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	return g.Run(ctx, cmd, output)
}
