package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
)

// leastFree is how much room the state directory needs, in bytes: some copies of service files.
const leastFree = 64 << 10

// A storage is the state directory, and what is known of writing to it.
type storage struct {
	dir      string
	claimed  bool
	settings *settingsWatcher
	statfs   func(string, *unix.Statfs_t) error

	conditions func() string // what is wrong with keeping them; empty: nothing
}

// warnings returns why what is to survive a restart may not.
func (s *storage) warnings() (list []string) {
	if !s.claimed {
		list = append(list, fmt.Sprintf("state directory %s has no lock: another svcproxy that uses it will not be refused", source.Quote(s.dir)))
	}
	if why := s.full(); why != "" {
		list = append(list, fmt.Sprintf("state directory %s %s: a restart will not know what is accepted from now on", source.Quote(s.dir), why))
	}
	if why := s.settings.keepError(); why != "" {
		list = append(list, "the last good svcproxy.toml cannot be kept, and a restart will not know it: "+why)
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
