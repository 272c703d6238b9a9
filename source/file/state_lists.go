package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
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
func (w *fileWithLists) unitVersion(v *read.Version) string {
	if len(w.lists) == 0 {
		return v.Name()
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(w.lists)) {
		fmt.Fprintf(sum, "%q %x\n", name, w.lists[name])
	}
	return v.Name() + "+" + hex.EncodeToString(sum.Sum(nil))
}

// A handedVersion is a version that was handed on.
type handedVersion struct {
	*read.Version
	fileWithLists // empty: it refers to none
}
