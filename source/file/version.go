package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"sync/atomic"

	"svcproxy.dev/svcproxy/source"
)

// A parser reads a service file's text, as Parse does, except for the services that
// are known from before. It returns those that are known by now. When ctx ends
// nobody wants to know any more, and what it returns is at fault.
type parser func(ctx context.Context, path string, data []byte, before knownServices) ([]*source.Service, []source.Fault, knownServices)

// A version is what was found in the place of a file at one time.
type version struct {
	// id tells versions apart: the hash of the contents, or of the reason why
	// there are none. The zero id: there is no file.
	id       [sha256.Size]byte
	path     string
	services []*source.Service
	known    knownServices    // of those
	lists    map[string][]int // indexes of services by the files of endpoints that they refer to
	products source.Products  // of services without those endpoints, where they refer to any
	list     *endpointList    // of a file of endpoints; nil: of one of services
	original *version         // of one that would be good, but not with the lists or services of others: see fit
	faults   []source.Fault
	revision atomic.Int64 // by which rules, see Source.Revalidate
	broken   bool         // a fault is more than a warning
	hidden   bool         // see Rules.hidden
	size     int          // of the contents, in bytes
	uid      int          // who owned the file; -1: not known
	data     []byte       // the contents, until they are known to be kept
}

func (v *version) name() string { return hex.EncodeToString(v.id[:]) }

// count returns how many services it has; nil: none.
func (v *version) count() int {
	if v == nil {
		return 0
	}
	return len(v.services)
}

// gone is the version of a file that does not exist.
var gone = &version{}

func newVersion(ctx context.Context, path string, data []byte, err error, rules Rules, parse parser, before knownServices) *version {
	v := &version{id: idOf(data, err), path: path, size: len(data), uid: -1, hidden: rules.hidden}
	switch {
	case err != nil:
		v.faults = []source.Fault{unreadable(path, err)}
	case isEndpointsFile(filepath.Base(path)):
		v.list, v.faults = parseList(path, data, rules.endpoints())
	default:
		v.services, v.faults, v.known = parse(ctx, path, data, before)
		v.setLists()
	}
	if v.hidden && err == nil {
		v.faults = hideWords(v.faults)
	}
	if v.list != nil {
		v.list.hidden = v.hidden
	}
	if v.broken = source.AnyError(v.faults); v.broken {
		v.services, v.lists, v.list = nil, nil, nil
	} else {
		v.data = data
	}
	return v
}

// listVersion returns the version of a file of endpoints with this text.
func listVersion(path string, data []byte, rules Rules) *version {
	return newVersion(context.Background(), path, data, nil, rules, nil, nil)
}

// setLists finds out which services refer to lists.
func (v *version) setLists() {
	for i, s := range v.services {
		if s.EndpointsFrom == "" {
			continue
		}
		if v.lists == nil {
			v.lists = map[string][]int{}
		}
		v.lists[s.EndpointsFrom] = append(v.lists[s.EndpointsFrom], i)
	}
	for i := 0; i < len(v.services) && v.lists != nil; i++ {
		v.products = v.products.Plus(v.services[i].Products())
	}
}

// unfit returns v as one that cannot be used with what others say, for these faults.
func (v *version) unfit(faults []source.Fault) *version {
	u := &version{id: v.id, path: v.path, known: v.known, faults: faults, broken: true, size: v.size, uid: v.uid, hidden: v.hidden, original: v}
	u.revision.Store(v.revision.Load())
	return u
}

func idOf(data []byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("\x00unreadable: " + err.Error()))
	}
	return sha256.Sum256(data)
}

// byKey returns its services; nil: none.
func (v *version) byKey() map[source.Key]*source.Service {
	if v == nil {
		return nil
	}
	m := make(map[source.Key]*source.Service, len(v.services))
	for _, s := range v.services {
		m[s.Key] = s
	}
	return m
}
