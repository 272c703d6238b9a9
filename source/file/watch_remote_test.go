package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Status warns of it too, as of what hinders; what lies beside service files is a note.
func TestStatusOfARemoteDirectory(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "web.yaml"), nil, 0o600))
	s := New(Options{Dir: dir})
	if st := s.Status(); len(st.Warnings) != 1 || st.Notes != 1 {
		t.Errorf("here: %q, of which notes: %d", st.Warnings, st.Notes)
	}
	s.statfs = func(_ string, st *unix.Statfs_t) error { st.Type = unix.NFS_SUPER_MAGIC; return nil }
	want := dir + " is on NFS, where changes by other hosts come without events: they are noticed within 30s, or at once after a reload"
	if st := s.Status(); len(st.Warnings) != 2 || st.Warnings[0] != want || st.Notes != 1 {
		t.Errorf("on NFS: %q, of which notes: %d", st.Warnings, st.Notes)
	}
}
