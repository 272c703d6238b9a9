package file

import (
	"bytes"
	"errors"
	"log/slog"
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
