package watch

import (
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// remote names the file systems that others than this kernel write to: the
// kernel tells of its own writes only, inotify(7). By statfs(2) type.
var remote = map[int64]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.FUSE_SUPER_MAGIC:  "FUSE",
	unix.V9FS_MAGIC:        "9p",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
}

// RemoteName returns which of them dir is on; empty: on none, or that is not known.
func RemoteName(dir string, statfs func(string, *unix.Statfs_t) error) string {
	var st unix.Statfs_t
	if err := statfs(dir, &st); err != nil {
		return "" // that it cannot be read is said elsewhere
	}
	return remote[int64(st.Type)]
}

// WarnRemote warns when changes of dir may come without events. They are then
// found when contents are compared, every poll.
func WarnRemote(log *slog.Logger, dir string, poll time.Duration, statfs func(string, *unix.Statfs_t) error) {
	if name := RemoteName(dir, statfs); name != "" {
		log.Warn("changes by other hosts of files on this file system come without events: they are noticed within the time between two polls only; reload to have one read at once",
			"dir", dir, "file_system", name, "poll", poll)
	}
}
