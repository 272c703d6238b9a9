package daemon

import (
	"context"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier"
)

// mostClients is how many are taken from one mode to another, for each family: as
// many as nftables mode remembers of one service port, in 30 MB.
const mostClients = 1 << 19

// handOverPatience is how long a family's clients may be read, and then written: a
// change of mode waits no longer for them. The kernel lists some 200,000 in that time.
var handOverPatience = 4 * time.Second

// handOver has clients of a family with session affinity keep the endpoints that they
// have in another mode, before that is removed. It fails nothing: who is not handed
// over is balanced again.
func (sw *modeSwitch) handOver(ctx context.Context, fam proxier.Family, from, to modes.Mode) {
	if pools := sw.loop.StickyPools(fam); len(pools) > 0 {
		sw.handOverPools(ctx, fam, pools, from, to)
	}
}

func (sw *modeSwitch) handOverPools(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, from, to modes.Mode) {
	log := sw.log.With("family", fam, "from", from.Name, "to", to.Name)
	if from.Clients == nil {
		log.Info("clients with session affinity are balanced again: the former mode cannot tell which they have")
		return
	}
	most := mostClients
	if to.Keep == nil {
		most = 1 // to say so
	}
	reading, stop := context.WithTimeout(ctx, handOverPatience)
	clients, err := from.Clients(reading, fam, pools, most)
	stop()
	switch {
	case ctx.Err() != nil || len(clients) == 0 && err == nil:
		return
	case to.Keep == nil:
		log.Info("clients with session affinity are balanced again: the new mode cannot be told which they have")
		return
	case err != nil:
		log.Warn("not all clients with session affinity are known: the others are balanced again", "known", len(clients), "err", err)
	}
	if len(clients) == 0 {
		return
	}
	writing, stop := context.WithTimeout(ctx, handOverPatience)
	kept, err := to.Keep(writing, fam, pools, clients)
	stop()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn("not all clients with session affinity keep their endpoint", "clients", len(clients), "kept", kept, "err", err)
	case kept < len(clients) || len(clients) == mostClients:
		log.Warn("not all clients with session affinity keep their endpoint: there is room for some only", "clients", len(clients), "kept", kept)
	default:
		log.Info("clients with session affinity keep their endpoint", "clients", kept)
	}
}
