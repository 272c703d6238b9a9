// Peer is the servers and clients of whole-system tests, and their agent where
// machines were booted by another program.
//
//	peer serve NAME ADDRESS ...        answer each TCP connection with a line that begins with NAME, and then echo
//	peer ask COUNT ADDRESS ...         print who answers each of COUNT connections to each address
//	peer stream ADDRESS ...            keep a connection to each address in use and make new ones, until SIGTERM; print a report
//	peer hold COUNT ADDRESS ...        make COUNT connections to each address and use them until SIGTERM; print a report
//	peer follow FILE ADDRESS NAME      make standard input the contents of FILE, and print after how long NAME answers
//	peer agent                         run programs and write files as a test asks for at standard input
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"svcproxy.dev/svcproxy/vmtests/internal/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "serve":
		return serve(ctx, args[1], args[2:])
	case len(args) >= 3 && args[0] == "ask":
		return ask(args[1], args[2:])
	case len(args) >= 2 && args[0] == "stream":
		return stream(ctx, args[1:])
	case len(args) >= 3 && args[0] == "hold":
		return hold(ctx, args[1], args[2:])
	case len(args) == 4 && args[0] == "follow":
		return follow(args[1], args[2], args[3])
	case len(args) == 1 && args[0] == "agent":
		return agent.Serve(struct {
			io.Reader
			io.Writer
		}{os.Stdin, os.Stdout})
	}
	return fmt.Errorf("unknown command or wrong arguments: %q", args)
}
