package file

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWarnRemote(t *testing.T) {
	is := func(magic int64) func(string, *unix.Statfs_t) error {
		return func(_ string, st *unix.Statfs_t) error { st.Type = magic; return nil }
	}
	tests := []struct {
		name   string
		statfs func(string, *unix.Statfs_t) error
		want   string // in the log; empty: nothing is logged
	}{
		{"nfs", is(unix.NFS_SUPER_MAGIC), "file_system=NFS"},
		{"cifs", is(unix.CIFS_SUPER_MAGIC), "file_system=CIFS"},
		{"ext4", is(unix.EXT4_SUPER_MAGIC), ""},
		{"no directory", func(string, *unix.Statfs_t) error { return errors.New("no") }, ""},
		{"this host's", unix.Statfs, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			warnRemote(slog.New(slog.NewTextHandler(&b, nil)), t.TempDir(), tt.statfs)
			if tt.want == "" && b.Len() > 0 || !strings.Contains(b.String(), tt.want) {
				t.Errorf("log %q, want %q", &b, tt.want)
			}
		})
	}
}

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
