package disk

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A FileID tells a directory from another that has taken its path.
type FileID struct{ Dev, Ino uint64 }

// A Stamp tells two versions of a file apart without reading it. The zero
// stamp is of no file.
type Stamp struct {
	FileID
	Size         int64
	Mtime, Ctime syscall.Timespec
	Uid          uint32
	Loose        bool // its mode lets others write it: everybody or, where root owns it, its group
}

// StampOf returns the stamp of a file that this is the information of.
func StampOf(info fs.FileInfo) Stamp {
	st := info.Sys().(*syscall.Stat_t)
	loose := st.Mode&0o002 != 0 || st.Uid == 0 && st.Mode&0o020 != 0 // an access control list shows in the mode of the group
	return Stamp{FileID{uint64(st.Dev), st.Ino}, st.Size, st.Mtim, st.Ctim, st.Uid, loose}
}

// putInPlace is how long after a file was written it can have been put in its place for
// that to be one change.
const putInPlace = 10 * time.Minute

// Changed returns when the file was changed: written, or put in place long after, or with a
// time of its own making. The kernel sets ctime.
func (s Stamp) Changed() time.Time {
	written, placed := time.Unix(s.Mtime.Unix()), time.Unix(s.Ctime.Unix())
	if written.After(placed) || written.Before(placed.Add(-putInPlace)) {
		return placed
	}
	return written
}

// A DirID tells a directory from another that has taken its path, and maybe its
// inode: what is made next, ext4 gives the inode of what was removed last.
type DirID struct {
	FileID
	Born int64 // ns since 1970; 0: the file system does not say
}

// Is reports whether both may be the same directory.
func (id DirID) Is(o DirID) bool {
	return id.FileID == o.FileID && (id.Born == o.Born || id.Born == 0 || o.Born == 0)
}

// DirIDOf returns that of an open directory, or of the one at path where fd is AT_FDCWD.
func DirIDOf(fd int, path string) (DirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return DirID{}, err
	}
	id := DirID{FileID: FileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

// RacyTime is how much older than its reading a file's last change must be for
// its stamp to be trusted: the kernel's clock for files may go in ticks (10 ms
// at HZ=100), and two writes in one tick give the same stamp.
const RacyTime = 50 * time.Millisecond

// coarseTick is what stamps of whole seconds may count in: vfat has steps of 2 s.
const coarseTick = 2 * time.Second

// RacyWindow returns for how long a stamp with these nanoseconds may be of more than one version.
func RacyWindow(nsec int64) time.Duration {
	if nsec == 0 {
		return coarseTick + RacyTime
	}
	return RacyTime
}
