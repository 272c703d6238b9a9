package read

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
)

// Rules are what service files are held to, besides what is wrong anywhere.
type Rules struct {
	Limits Limits

	// Check returns what this host cannot do of a service; nil: it can do all.
	Check func(*source.Service) []source.Problem

	// GuardPrograms refuses checks that run programs in a file that others than root can change: the programs would
	// run as root.
	GuardPrograms bool

	// Hidden keeps faults from quoting the text: a link to the file belongs to another user than the file, who may have
	// no right to read it.
	Hidden bool

	Writer func(path string) (string, error) // in place of trust.Writer; nil: that

	// Owners returns who may claim what; nil, or none: files may claim everything.
	Owners func() []Owner

	From  Origin // of the text; what reads a file by these rules sets Owned and UID
	share *share // of the text; nil: everything

	Before Before // for those who read a directory as its daemon would
}

// Before is what is in use of the files of a directory, by name: of service files those that refer to lists.
type Before struct {
	Bound map[string]*Bound
	Lists map[string]*Version
}

// OfText returns the rules for a text that was read from a file.
func (rules Rules) OfText(t disk.Text) Rules {
	rules.Hidden = t.Hidden
	rules.From.UID, rules.From.Loose = t.Stamp.Uid, t.Stamp.Loose
	rules.From.Owned = t.Err == nil && !t.Strange && !t.Stamp.Loose
	return rules
}

// MaxFileSize is the most that Limits.FileSize can be.
const MaxFileSize = 1 << 30

// Limits bound what a file may hold. A limit that is 0 is that of DefaultLimits.
type Limits struct {
	FileSize  int // bytes, 1 GiB at most
	Services  int // of a file
	Endpoints int // of a service
	Ports     int // of a service

	// Of a file, and of all services together: see source.Products.
	Frontends, FrontendEndpoints, FrontendSourceRanges int
}

// DefaultLimits are far above what files hold in earnest, and low enough that
// one that was made by mistake does not take all memory: a file takes some 15
// times its size while it is read. 10,000 services of 10 endpoints, each a table
// of its own, are about 5 MiB.
//
// Measured in nftables mode on kernel 6.18, on two busy cores: 1,000,000 frontends take 20 s and 1.24 GB at the
// peak of a start; 100,000 services of 10 endpoints 121 s, of which the first sync is 20 s. An element for an endpoint costs
// the kernel some 100 bytes and 5 us to load: 0.2 GB and 10 s for 2,000,000. The kernel compares a source range with all
// that are there, so that 50,000 take 27 s to load, and twice as many four times as long.
var DefaultLimits = Limits{
	FileSize: 16 << 20, Services: 100_000, Endpoints: 10_000, Ports: 1000,
	Frontends: 1_000_000, FrontendEndpoints: 2_000_000, FrontendSourceRanges: 50_000,
}

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	return Limits{
		cmp.Or(l.FileSize, d.FileSize), cmp.Or(l.Services, d.Services), cmp.Or(l.Endpoints, d.Endpoints), cmp.Or(l.Ports, d.Ports),
		cmp.Or(l.Frontends, d.Frontends), cmp.Or(l.FrontendEndpoints, d.FrontendEndpoints), cmp.Or(l.FrontendSourceRanges, d.FrontendSourceRanges),
	}
}

// Products returns the limits of what lists are multiplied to.
func (l Limits) Products() source.Products {
	l = l.orDefault()
	return source.Products{Frontends: uint64(l.Frontends), Endpoints: uint64(l.FrontendEndpoints), SourceRanges: uint64(l.FrontendSourceRanges)}
}

// MaxSize is the size of the largest file that is read, in bytes.
func (rules Rules) MaxSize() int { return rules.Limits.orDefault().FileSize }

const raiseEndpoints = "raise endpoints in [limits] of " + SettingsName

// set has r refuse what exceeds the limits.
func (l Limits) set(r *decode.Reader) {
	r.Limit("services", l.Services, "split the file, or raise services in [limits] of "+SettingsName)
	r.Limit("endpoints", l.Endpoints, raiseEndpoints)
	r.Limit("ports", l.Ports, "raise ports in [limits] of "+SettingsName)
	r.Limit("expect_status", source.MaxStatuses, "")
	r.Limit("command", source.MaxArguments, "")
	r.Limit("labels", source.MaxLabels, "")
}

// tooLarge is the fault of a file that has more than limit bytes.
func tooLarge(path string, limit int) source.Fault {
	return source.Fault{
		Pos:  source.Position{File: path},
		Msg:  fmt.Sprintf("the file has more than %d bytes", limit),
		Hint: "split it, or raise file_size in [limits] of " + SettingsName,
	}
}

// MaxName is how long a file name can be, in bytes: NAME_MAX, <linux/limits.h>.
const MaxName = 255

// SettingsName is the file of settings, which is never a service file.
const SettingsName = "svcproxy.toml"

// IsServiceFile reports whether a file can hold services, or endpoints of services, by its name. What
// editors and package managers leave behind (web.toml~, .web.toml.swp,
// web.toml.dpkg-old) begins with a dot or does not end in .toml or .json.
func IsServiceFile(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".toml" || ext == ".json") && !strings.HasPrefix(name, ".") && name != SettingsName
}

// IsFileName reports whether a text that was kept can be the name of a service file.
func IsFileName(name string) bool { return IsServiceFile(name) && !strings.ContainsAny(name, "/\x00") }

// maxTextName is how long the name of a text of a server can be, in bytes.
const maxTextName = 1024

// IsTextName reports whether a text of a server can have this name: a URL or etcd:/KEY that ends as names of service files do.
func IsTextName(name string) bool {
	scheme, _, ok := strings.Cut(name, ":/")
	return ok && scheme != "" && !strings.Contains(scheme, "/") && len(name) <= maxTextName && utf8.ValidString(name) && IsServiceFile(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) })
}

// IsKeptName reports whether a text that was kept can be the name of a file, or of a text of a server.
func IsKeptName(name string) bool { return IsFileName(name) || IsTextName(name) }

// IsEndpointsFile reports whether a file that can hold services holds a list of endpoints
// instead, by its name: what services refer to by endpoints_from. No text of a server is one.
func IsEndpointsFile(name string) bool {
	return IsServiceFile(name) && !strings.Contains(name, "/") && (strings.HasSuffix(name, ".endpoints.json") || strings.HasSuffix(name, ".endpoints.toml"))
}

// A File is one service file as it was read.
type File struct {
	Path       string
	Services   []*source.Service // none where it cannot be used
	Faults     []source.Fault    // warnings too
	Unreadable bool              // nobody knows what it says; a fault says why

	inUse *Bound // before, with the lists of now; nil: it referred to none
}

// Unit returns what a daemon has of the file. It returns false where that is what it had before.
func (f *File) Unit(id source.UnitID) (source.Unit, bool) {
	u := source.Unit{ID: id, Services: f.Services}
	good := !source.AnyError(f.Faults)
	if f.inUse == nil {
		return u, good
	}
	u.InUse = &source.Unit{ID: id, Version: f.inUse.Version.Name(), Services: f.inUse.Services}
	if !good {
		u.Services = f.inUse.Services
	}
	return u, true
}

// OfEndpoints reports whether the file lists endpoints, by its name, and has no services.
func (f *File) OfEndpoints() bool { return IsEndpointsFile(filepath.Base(f.Path)) }
