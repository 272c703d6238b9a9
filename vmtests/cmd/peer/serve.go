package main

import (
	"context"
	"fmt"
	"net/netip"

	"svcproxy.dev/svcproxy/internal/echotest"
)

func serve(ctx context.Context, name string, addrs []string) error {
	var servers echotest.Servers
	defer servers.Close()
	for _, addr := range addrs {
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		if err := servers.Serve(name, at); err != nil {
			return err
		}
	}
	fmt.Println("serving")
	<-ctx.Done()
	return nil
}
