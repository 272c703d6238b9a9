//go:build netns

package nftables_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables"
)

// known returns the clients that the table tells of.
func (h *host) known(pools []*proxier.Pool, limit int) []proxier.Client {
	h.Helper()
	list, err := nftables.Clients(context.Background(), h.Family, pools, limit)
	if err != nil {
		h.Fatal(err)
	}
	return list
}

func (h *host) keep(pools []*proxier.Pool, clients []proxier.Client) int {
	h.Helper()
	n, err := nftables.Keep(context.Background(), h.Family, pools, clients)
	if err != nil {
		h.Fatal(err)
	}
	return n
}

// Clients of a table that is gone keep their endpoint in a new one, for as long as
// was left, also those that have come before they were written.
func TestClientsAreTakenOver(t *testing.T) {
	packets(t, 4, func(h *host) {
		res := h.service("sticky", 10, time.Hour, ones(4)...)
		if n := len(h.known(res.Pools, 100)); n > 0 {
			h.Errorf("without a table there are %d clients", n)
		}
		h.Sync(h.World.Put(res.Key, res))
		answered := map[string]int{}
		for client := range clients {
			answered[h.address(100+client).String()] = h.mustAsk(h.at(10), client)
		}
		list := h.known(res.Pools, 100)
		if len(list) != clients {
			h.Fatalf("%d clients are known, want %d", len(list), clients)
		}
		for i, c := range list {
			if c.Target != answered[c.Addr.String()] || c.Left > time.Hour || c.Left < 50*time.Minute {
				h.Errorf("client %s keeps target %d for %v, want %d for an hour", c.Addr, c.Target, c.Left, answered[c.Addr.String()])
			}
			list[i].Left = 10 * time.Minute
		}
		if n := len(h.known(res.Pools, 3)); n != 3 {
			h.Errorf("of at most 3 clients there are %d", n)
		}
		if err := h.Backend.Cleanup(context.Background()); err != nil {
			h.Fatal(err)
		}
		h.Restart()
		h.Sync(nil)
		h.takeOver(res.Pools, list)
	})
}

// takeOver writes clients of which the first has come by now, to another endpoint.
func (h *host) takeOver(pools []*proxier.Pool, list []proxier.Client) {
	h.Helper()
	first := slices.IndexFunc(list, func(c proxier.Client) bool { return c.Addr == h.address(100) })
	list[first].Target = (h.mustAsk(h.at(10), 0) + 1) % 4
	if n := h.keep(pools, list); n != clients {
		h.Errorf("%d of %d clients are kept", n, clients)
	}
	for _, c := range h.known(pools, 100) {
		least, most := 5*time.Minute, 10*time.Minute
		if c.Addr == list[first].Addr { // who came just now is remembered for an hour
			least, most = 50*time.Minute, time.Hour
		}
		if c.Left > most || c.Left < least {
			h.Errorf("client %s is known for %v, want %v", c.Addr, c.Left, most)
		}
	}
	for _, c := range list {
		client := 0
		for h.address(100+client) != c.Addr {
			client++
		}
		if now := h.mustAsk(h.at(10), client); now != c.Target {
			h.Errorf("client %s gets endpoint %d, had %d", c.Addr, now, c.Target)
		}
	}
	h.Settled("clients were taken over")
}

// A client of an endpoint that has left meanwhile is balanced again, also when the endpoint is back.
func TestClientOfEndpointThatLeftIsNotTakenOver(t *testing.T) {
	packets(t, 4, func(h *host) {
		all, three := h.service("sticky", 10, time.Hour, ones(4)...), h.service("sticky", 10, time.Hour, 1, 1, 1)
		h.Sync(h.World.Put(three.Key, three))
		var list []proxier.Client
		for client := range clients {
			list = append(list, proxier.Client{Addr: h.address(100 + client), Pool: all.Pools[0], Target: 3, Left: time.Hour})
		}
		if n := h.keep(all.Pools, list); n != 0 {
			h.Errorf("%d clients keep an endpoint that has left", n)
		}
		family, name, _ := strings.Cut(h.table(), " ")
		if text := run(h, "nft", "list", "map", family, name, "tickets"); strings.Contains(text, "elements") {
			h.Errorf("there is a ticket left:\n%s", text)
		}
		h.Settled("no client was taken over")
	})
}

// Nobody takes clients that are written for a change by others.
func TestTakingOverDisturbsNobody(t *testing.T) {
	packets(t, 4, func(h *host) {
		res := h.service("sticky", 10, time.Hour, ones(4)...)
		h.Sync(h.World.Put(res.Key, res))
		events := h.watch()
		h.keep(res.Pools, []proxier.Client{{Addr: h.address(100), Pool: res.Pools[0], Target: 2, Left: time.Hour}})
		h.nft("add chain TABLE stray") // of which is told after what was before
		select {
		case e := <-events:
			if e.Lost || e.Process != "nft" {
				h.Errorf("told of %+v", e)
			}
		case <-time.After(pace.Scale(10 * time.Second)):
			h.Error("nothing is told of")
		}
	})
}
