package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/lately"
	"svcproxy.dev/svcproxy/source"
)

// claimNamespace makes this the one daemon of the network namespace, before
// anything of its kernel is looked at. Two would undo each other's work forever.
func claimNamespace(o Options) (*control.NamespaceClaim, error) {
	self := control.Holder{PID: os.Getpid(), Version: o.Version, ConfigDir: o.ConfigDir, StateDir: o.StateDir, RunDir: o.RunDir}
	for _, dir := range []*string{&self.ConfigDir, &self.StateDir, &self.RunDir} {
		if abs, err := filepath.Abs(*dir); err == nil {
			*dir = abs
		}
	}
	return control.ClaimNamespace(o.Namespace, self)
}

// leastFree is how much room the state directory needs, in bytes: some copies of service files.
const leastFree = 64 << 10

// A storage is the state directory, and what is known of writing to it.
type storage struct {
	dir     string
	claimed bool
	statfs  func(string, *unix.Statfs_t) error

	unkept     func() string // why the settings in use are not kept; empty: they are
	conditions func() string // what is wrong with keeping them; empty: nothing

	disk lately.Value[[]string] // of look
}

// newStorage completes what has all but disk.
func newStorage(s *storage) *storage {
	s.disk = lately.Value[[]string]{Find: s.check, Patience: countsPatience}
	return s
}

// warnings returns why what is to survive a restart may not.
func (s *storage) warnings() (list []string) {
	if !s.claimed {
		list = append(list, fmt.Sprintf("state directory %s has no lock: another svcproxy that uses it will not be refused", source.Quote(s.dir)))
	}
	if why := s.unkept(); why != "" {
		list = append(list, "the last good svcproxy.toml cannot be kept, and a restart will not know it: "+why)
	}
	found, inTime := s.disk.Get()
	if !inTime {
		list = append(list, fmt.Sprintf("state directory %s does not answer", source.Quote(s.dir)))
	}
	return append(list, found...)
}

// check returns what is wrong with the state directory. It waits for the disk.
func (s *storage) check() (list []string) {
	if why := s.full(); why != "" {
		list = append(list, fmt.Sprintf("state directory %s %s: a restart will not know what is accepted from now on", source.Quote(s.dir), why))
	}
	if why := s.conditions(); why != "" {
		list = append(list, why)
	}
	return list
}

// full returns why nothing can be written; empty: it can, or that is not known.
func (s *storage) full() string {
	var st unix.Statfs_t
	switch err := s.statfs(s.dir, &st); {
	case err != nil:
		return "cannot be looked at (" + err.Error() + ")"
	case st.Flags&unix.ST_RDONLY != 0:
		return "is read-only"
	case st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < leastFree:
		return "is full"
	case st.Files > 0 && st.Ffree == 0:
		return "has no room for another file"
	}
	return ""
}
