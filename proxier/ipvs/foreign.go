package ipvs

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// maxLogged is how many foreign servers are logged at once. If the state directory was
// lost there are as many as services.
const maxLogged = 50

func orDiscard(log *slog.Logger) *slog.Logger { return cmp.Or(log, slog.New(slog.DiscardHandler)) }

// foreignServer is the refusal of a server that exists and is not recorded. It is left alone.
func foreignServer(name policy.ServicePortName, key lvs.Key) refusal {
	return refusal{fmt.Errorf("service %s: virtual server %v belongs to another program: it is left alone", name, key), true}
}

// logForeign logs servers that were not foreign, or not wanted, before.
func (b *Backend) logForeign() {
	known := b.foreign
	b.foreign = make(map[lvs.Key]struct{})
	var found []lvs.Key
	for key, why := range b.refused {
		if !why.foreign {
			continue
		}
		b.foreign[key] = struct{}{}
		if _, was := known[key]; !was {
			found = append(found, key)
		}
	}
	b.warnForeign(found, func(key lvs.Key) string {
		return fmt.Sprintf("a virtual server that service %s wants belongs to another program: it is left alone", b.claims.by[key].frontend().ServicePort)
	})
}

// warnForeign logs the same of servers, in order, and how to remove them.
func (b *Backend) warnForeign(keys []lvs.Key, what func(lvs.Key) string) {
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys[:min(len(keys), maxLogged)] {
		b.log.Warn(what(key), "family", b.fam, "virtual_server", key, "to_remove", "ipvsadm -D "+key.String())
	}
	if more := len(keys) - maxLogged; more > 0 {
		b.log.Warn("there are more such virtual servers: was the state directory lost?", "family", b.fam, "virtual_servers", more)
	}
}
