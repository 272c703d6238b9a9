package ipvs

import (
	"context"
	"iter"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// list returns the virtual servers of our family. Of those that the last sync or
// the record knows none is left out, whatever others change meanwhile.
func (b *Backend) list(ctx context.Context) (map[lvs.Key]lvs.Listing, error) {
	return b.conn.List(ctx, b.fam == proxier.IPv6, b.known())
}

// known yields the keys of servers that are ours as far as we know, some twice.
func (b *Backend) known() iter.Seq[lvs.Key] {
	return func(yield func(lvs.Key) bool) {
		for key := range b.servers {
			if !yield(key) {
				return
			}
		}
		for key := range b.record.owned {
			if !yield(key) {
				return
			}
		}
		for key := range b.record.drains {
			if !yield(key) {
				return
			}
		}
	}
}
