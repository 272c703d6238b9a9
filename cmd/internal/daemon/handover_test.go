package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier"
)

const stickyService = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ port = 80 }]
endpoints = ["192.0.2.1", "192.0.2.2"]
session_affinity = "client_ip"
`

// Clients that cannot be read, or not be written, keep no mode from changing, and
// those that were read are written.
func TestHandOverFailsNothing(t *testing.T) {
	old := handOverPatience
	handOverPatience = 50 * time.Millisecond
	t.Cleanup(func() { handOverPatience = old })
	first, second := new(kernel), new(kernel)
	hangs := func(ctx context.Context, _ proxier.Family, pools []*proxier.Pool, _ int) ([]proxier.Client, error) {
		<-ctx.Done()
		return []proxier.Client{{Pool: pools[0], Target: 1, Left: time.Hour}}, ctx.Err()
	}
	written := make(chan proxier.Client, 10)
	full := func(_ context.Context, _ proxier.Family, _ []*proxier.Pool, clients []proxier.Client) (int, error) {
		written <- clients[0]
		return 0, errors.New("no room")
	}
	tells, isTold := stub("nftables", opens(first)), stub("ipvs", opens(second))
	tells.Clients, isTold.Keep = hangs, full
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n",
		tells, isTold)
	r.ready()
	r.write("web.toml", stickyService)
	r.eventually("sticky", func() bool { return strings.Contains(r.log.String(), "service synced") })
	says := func(what string) {
		t.Helper()
		r.eventually("said that "+what, func() bool { return strings.Contains(r.log.String(), what) })
	}
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	says("removed what the former mode made")
	if c := <-written; c.Target != 1 || c.Left != time.Hour {
		t.Errorf("written: %+v", c)
	}
	says("not all clients with session affinity are known")
	says("no room")
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"iptables\"\n")
	says("clients with session affinity are balanced again: the former mode cannot tell which they have")
}

// Clients that cannot be read do not keep back a mode that cannot be told of them either.
func TestHandOverToNoneHangs(t *testing.T) {
	old := handOverPatience
	handOverPatience = 50 * time.Millisecond
	t.Cleanup(func() { handOverPatience = old })
	tells, isNotTold := stub("nftables", opens(new(kernel))), stub("ipvs", opens(new(kernel)))
	tells.Clients = func(ctx context.Context, _ proxier.Family, _ []*proxier.Pool, _ int) ([]proxier.Client, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", tells, isNotTold)
	r.ready()
	r.write("web.toml", stickyService)
	r.eventually("sticky", func() bool { return strings.Contains(r.log.String(), "service synced") })
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	for _, what := range []string{"the new mode cannot be told which they have", "removed what the former mode made"} {
		r.eventually("said that "+what, func() bool { return strings.Contains(r.log.String(), what) })
	}
}
