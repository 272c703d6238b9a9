package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// maxErrors is how many errors of one sync are reported; one cause can lead to thousands.
const maxErrors = 8

// failures collects the errors of a sync that continues.
type failures struct {
	errs []error
	n    int
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	if f.n++; f.n <= maxErrors {
		f.errs = append(f.errs, err)
	}
}

// join returns the first errors and the number of others; nil if there are none.
func (f *failures) join() error {
	if more := f.n - len(f.errs); more > 0 {
		return errors.Join(append(f.errs, fmt.Errorf("and %d more", more))...)
	}
	return errors.Join(f.errs...)
}

// refused has the desired servers that are missing or incomplete, with the reason.
// Retrying at once is useless.
type refused map[lvs.Key]refusal

type refusal struct {
	err     error
	foreign bool // another program has the server
}

// unserved returns the error for them; nil if there are none.
func (r refused) unserved() *proxier.PartialError {
	if len(r) == 0 {
		return nil
	}
	var errs failures
	for _, key := range slices.SortedFunc(maps.Keys(r), compareKeys) {
		errs.add(r[key].err)
	}
	return &proxier.PartialError{N: len(r), Err: errs.join()}
}

// unserved returns the error for refused virtual servers; nil if there are none.
func (b *Backend) unserved() *proxier.PartialError {
	u := b.refused.unserved()
	if u == nil {
		return nil
	}
	u.Frontends = make(map[policy.FrontendKey]bool, len(b.refused))
	for key, why := range b.refused {
		f := b.claims.by[key].frontend()
		if f == nil {
			continue
		}
		elsewhere := f.Key.Kind == policy.NodePort && len(b.claims.host.Addrs(f)) > 1
		u.Frontends[f.Key] = !elsewhere && (why.foreign || !b.servers[key].takes())
	}
	return u
}

// missingEntries returns those that do not exist at all. Foreign ones do: IPVS handles
// their packets, and daemons of the host do not see them. If our record was lost we made
// them, and they serve while the log says what to do.
func (r refused) missingEntries(servers map[lvs.Key]*server) map[ipset.Entry]bool {
	out := make(map[ipset.Entry]bool, len(r))
	for key, why := range r {
		if servers[key] == nil && !why.foreign {
			out[entryOf(key)] = true
		}
	}
	return out
}
