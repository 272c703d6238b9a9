package ipvs

import (
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/netutil/lvs"
)

// maxLogged is how many foreign servers are logged at once. If the state directory was
// lost there are as many as services.
const maxLogged = 50

// logForeign logs servers that were not foreign, or not wanted, before.
func (o *owner) logForeign(c *frontendPairs) {
	known := o.foreign
	o.foreign = make(map[lvs.Key]struct{})
	var found []lvs.Key
	for key, why := range o.refused {
		if !why.foreign {
			continue
		}
		o.foreign[key] = struct{}{}
		if _, was := known[key]; !was {
			found = append(found, key)
		}
	}
	o.warnForeign(found, func(key lvs.Key) string {
		return fmt.Sprintf("a virtual server that service %s wants belongs to another program: it is left alone", c.by[key].frontend().ServicePort)
	})
}

// warnForeign logs the same of servers, in order, and how to remove them.
func (o *owner) warnForeign(keys []lvs.Key, what func(lvs.Key) string) {
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys[:min(len(keys), maxLogged)] {
		o.log.Warn(what(key), "family", o.fam, "virtual_server", key, "to_remove", "ipvsadm -D "+key.String())
	}
	if more := len(keys) - maxLogged; more > 0 {
		o.log.Warn("there are more such virtual servers: was the state directory lost?", "family", o.fam, "virtual_servers", more)
	}
}
