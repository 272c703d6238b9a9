package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	services []*source.Service
	known    knownServices // of those
	faults   []source.Fault
	revision atomic.Int64 // by which rules, see Source.Revalidate
	broken   bool         // a fault is more than a warning
	size     int          // of the contents, in bytes
	uid      int          // who owned the file; -1: not known
	data     []byte       // the contents, until they are known to be kept
}

func (v *version) name() string { return hex.EncodeToString(v.id[:]) }

// gone is the version of a file that does not exist.
var gone = &version{}

func newVersion(ctx context.Context, path string, data []byte, err error, parse parser, before knownServices) *version {
	v := &version{id: idOf(data, err), size: len(data), uid: -1}
	if err != nil {
		v.faults = []source.Fault{unreadable(path, err)}
	} else {
		v.services, v.faults, v.known = parse(ctx, path, data, before)
	}
	for _, f := range v.faults {
		v.broken = v.broken || !f.Warning
	}
	if v.broken {
		v.services = nil
	} else {
		v.data = data
	}
	return v
}

func idOf(data []byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("\x00unreadable: " + err.Error()))
	}
	return sha256.Sum256(data)
}

func byKey(services []*source.Service) map[source.Key]*source.Service {
	m := make(map[source.Key]*source.Service, len(services))
	for _, s := range services {
		m[s.Key] = s
	}
	return m
}
