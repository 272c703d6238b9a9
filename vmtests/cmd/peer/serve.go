package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"golang.org/x/sync/errgroup"
)

func serve(ctx context.Context, name string, addrs []string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		g.Go(func() error { return accept(l, name) })
		context.AfterFunc(ctx, func() { l.Close() })
	}
	fmt.Println("serving")
	return g.Wait()
}

func accept(l net.Listener, name string) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			fmt.Fprintln(conn, name)
			io.Copy(conn, conn)
		}()
	}
}
