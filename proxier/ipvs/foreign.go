package ipvs

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// maxNamed is how many foreign servers one sync names in the log. Where the state
// directory was lost there are as many as services.
const maxNamed = 50

func logOf(o Options) *slog.Logger { return cmp.Or(o.Log, slog.New(slog.DiscardHandler)) }

// notOurs refuses a server that exists and is not recorded. It is left as it is.
func notOurs(name proxier.ServicePortName, key lvs.Key) refusal {
	return refusal{fmt.Errorf("service %s: virtual server %v belongs to another program: it is left alone", name, key), true}
}

// logForeign names servers that were not foreign, or not wanted, before.
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
	slices.SortFunc(found, compareKeys)
	for _, key := range found[:min(len(found), maxNamed)] {
		b.log.Warn("a virtual server that a service wants belongs to another program: it is left alone",
			"family", b.fam, "virtual_server", key, "service", b.claims.by[key].frontend().ServicePort, "to_remove", "ipvsadm -D "+key.String())
	}
	if more := len(found) - maxNamed; more > 0 {
		b.log.Warn("more virtual servers belong to another program, or were ours before the state directory was lost", "family", b.fam, "virtual_servers", more)
	}
}
