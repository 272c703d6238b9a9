package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A file and its list may change together, and the file then be refused, for another has what it claims.
// It stays as it was last accepted, with the list of then: the new one need not fit it. So what was accepted
// of a file is known with its lists, also after a restart.

// A fileWithLists is what is handed on of a file that refers to lists.
type fileWithLists struct {
	services []*source.Service            // with their endpoints
	lists    map[string][sha256.Size]byte // versions, by name
}

// unitVersion tells what is handed on of v apart from v with other lists.
func (w *fileWithLists) unitVersion(v *version) string {
	if len(w.lists) == 0 {
		return v.name()
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(w.lists)) {
		fmt.Fprintf(sum, "%q %x\n", name, w.lists[name])
	}
	return v.name() + "+" + hex.EncodeToString(sum.Sum(nil))
}

// A handedVersion is a version that was handed on.
type handedVersion struct {
	*version
	fileWithLists // empty: it refers to none
}

// A binding is a service that was bound to a list.
type binding struct {
	service  *source.Service
	problems []source.Problem
	faults   []source.Fault // those, with their places; nil: not placed yet
}

// bindings are what is known of a file and the lists that it refers to: services are not bound
// again while neither they nor their list have changed.
type bindings map[bindingKey]binding

type bindingKey struct {
	service *source.Service // as it was read
	list    *endpointList
}
