package read

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"

	"svcproxy.dev/svcproxy/source"
)

// Source is what the source of files is called, in settings and in units.
const Source = "file"

// A Parser reads a service file's text, as Rules.ParseNew does, except for the services that
// are known from before. It returns those that are known by now. When ctx ends
// nobody wants to know any more, and what it returns is at fault.
type Parser func(rules Rules, ctx context.Context, path string, data []byte, before KnownServices) ([]*source.Service, []source.Fault, KnownServices)

// A Version is what was found in the place of a file at one time.
type Version struct {
	// ID tells versions apart: the hash of the contents, or of the reason why
	// there are none. The zero id: there is no file.
	ID       [sha256.Size]byte
	Path     string
	Services []*source.Service
	Known    KnownServices    // of those
	Lists    map[string][]int // indexes of services by the files of endpoints that they refer to
	List     *EndpointList    // of a file of endpoints; nil: of one of services
	Original *Version         // of one that would be good, but not with its lists: see Bind
	Faults   []source.Fault
	Revision atomic.Int64 // by which rules, see Source.Revalidate
	UID      atomic.Int64 // who owned the file; -1: not known; -2: it is of a server
	vouched  atomic.Bool  // see Origin
	Broken   bool         // a fault is more than a warning
	Hidden   bool         // see Rules.Hidden
	Size     int          // of the contents, in bytes
	Data     []byte       // the contents, until they are known to be kept

	unreadable bool // nobody knows what it says, of one that is read once
}

// Name returns its ID in hex.
func (v *Version) Name() string { return hex.EncodeToString(v.ID[:]) }

// IDText returns an ID in hex, empty for the zero one.
func IDText(id [sha256.Size]byte) string {
	if id == ([sha256.Size]byte{}) {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// ParseID reads what IDText wrote of an ID that is not zero.
func ParseID(text string) (id [sha256.Size]byte, ok bool) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data) != len(id) {
		return id, false
	}
	copy(id[:], data)
	return id, true
}

// MarshalText implements encoding.TextMarshaler. A version is written as its ID.
func (v *Version) MarshalText() ([]byte, error) { return []byte(v.Name()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Version) UnmarshalText(text []byte) (err error) {
	id, ok := ParseID(string(text))
	if v.ID = id; !ok {
		err = fmt.Errorf("%q is no version", text)
	}
	return err
}

// Same reports whether both are one text that was judged alike.
func (v *Version) Same(o *Version) bool {
	return v.ID == o.ID && v.Revision.Load() == o.Revision.Load() && v.Hidden == o.Hidden && slices.Equal(v.Faults, o.Faults)
}

// IsFrom reports whether it was judged as a text of this owner. err says why there is no text.
func (v *Version) IsFrom(o Origin, err error) bool {
	return v.UID.Load() == o.user(err) && v.vouched.Load() == o.vouched()
}

// SetOrigin has it be a text of this owner, by whom it is judged alike.
func (v *Version) SetOrigin(o Origin, err error) {
	v.UID.Store(o.user(err))
	v.vouched.Store(o.vouched())
}

// Count returns how many services it has; nil: none.
func (v *Version) Count() int {
	if v == nil {
		return 0
	}
	return len(v.Services)
}

// Gone is the version of a file that does not exist.
var Gone = &Version{}

// NewVersion returns the version of a file with this text or, where err says why there is none, without. parse reads it, unless
// the name is one of a list of endpoints; before are the services of the version before.
func NewVersion(ctx context.Context, path string, data []byte, err error, rules Rules, parse Parser, before KnownServices) *Version {
	v := &Version{ID: IDOf(data, err), Path: path, Size: len(data), Hidden: rules.Hidden}
	v.SetOrigin(rules.From, err)
	var unowned *source.Fault
	rules.share, unowned = rules.shareOf(path)
	switch {
	case err != nil:
		v.Faults = []source.Fault{Unreadable(path, err)}
	case rules.From.URL == "" && IsEndpointsFile(filepath.Base(path)):
		v.List, v.Faults = parseList(path, data, rules.Limits.orDefault().Endpoints)
	default:
		v.Services, v.Faults, v.Known = parse(rules, ctx, path, data, before)
		v.setLists()
	}
	if v.Hidden && err == nil {
		v.Faults = hideWords(v.Faults)
	}
	if v.List != nil {
		v.List.hidden = v.Hidden
	}
	if unowned != nil && err == nil { // one without services would still remove those of before
		v.Faults = append([]source.Fault{*unowned}, v.Faults...)
	}
	if v.Broken = source.AnyError(v.Faults); v.Broken {
		v.Services, v.Lists, v.List = nil, nil, nil
	} else {
		v.Data = data
	}
	return v
}

// ListVersion returns the version of a file of endpoints with this text.
func ListVersion(path string, data []byte, rules Rules) *Version {
	return NewVersion(context.Background(), path, data, nil, rules, nil, nil)
}

// setLists finds out which services refer to lists.
func (v *Version) setLists() {
	for i, s := range v.Services {
		if s.EndpointsFrom == "" {
			continue
		}
		if v.Lists == nil {
			v.Lists = map[string][]int{}
		}
		v.Lists[s.EndpointsFrom] = append(v.Lists[s.EndpointsFrom], i)
	}
}

// Unfit returns v as one that cannot be used with its lists, for these faults.
func (v *Version) Unfit(faults []source.Fault) *Version {
	u := &Version{ID: v.ID, Path: v.Path, Known: v.Known, Faults: faults, Broken: true, Size: v.Size, Hidden: v.Hidden, Original: v}
	u.Revision.Store(v.Revision.Load())
	u.UID.Store(v.UID.Load())
	u.vouched.Store(v.vouched.Load())
	return u
}

// IDOf returns the ID of a version with this text, or without one for this reason.
func IDOf(data []byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("\x00unreadable: " + err.Error()))
	}
	return sha256.Sum256(data)
}

// ByKey returns its services; nil: none.
func (v *Version) ByKey() map[source.Key]*source.Service {
	if v == nil {
		return nil
	}
	m := make(map[source.Key]*source.Service, len(v.Services))
	for _, s := range v.Services {
		m[s.Key] = s
	}
	return m
}
