package file

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A fileID tells a directory from another that has taken its path.
type fileID struct{ dev, ino uint64 }

// A stamp tells two versions of a file apart without reading it. The zero
// stamp is of no file.
type stamp struct {
	fileID
	size         int64
	mtime, ctime syscall.Timespec
	uid          uint32
}

func stampOf(info fs.FileInfo) stamp {
	st := info.Sys().(*syscall.Stat_t)
	return stamp{fileID{uint64(st.Dev), st.Ino}, st.Size, st.Mtim, st.Ctim, st.Uid}
}

// putInPlace is how long after a file was written it can have been put in its place for
// that to be one change.
const putInPlace = 10 * time.Minute

// changed returns when the file was changed: written, or put in place long after, or with a
// time of its own making. The kernel sets ctime.
func (s stamp) changed() time.Time {
	written, placed := time.Unix(s.mtime.Unix()), time.Unix(s.ctime.Unix())
	if written.After(placed) || written.Before(placed.Add(-putInPlace)) {
		return placed
	}
	return written
}

// A dirID tells a directory from another that has taken its path, and maybe its
// inode: what is made next, ext4 gives the inode of what was removed last.
type dirID struct {
	fileID
	born int64 // ns since 1970; 0: the file system does not say
}

func (id dirID) is(o dirID) bool {
	return id.fileID == o.fileID && (id.born == o.born || id.born == 0 || o.born == 0)
}

// dirIDOf returns that of an open directory, or of the one at path where fd is AT_FDCWD.
func dirIDOf(fd int, path string) (dirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return dirID{}, err
	}
	id := dirID{fileID: fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

// racyTime is how much older than its reading a file's last change must be for
// its stamp to be trusted: the kernel's clock for files may go in ticks (10 ms
// at HZ=100), and two writes in one tick give the same stamp.
const racyTime = 50 * time.Millisecond

// coarseTick is what stamps of whole seconds may count in: vfat has steps of 2 s.
const coarseTick = 2 * time.Second

// racyWindow returns for how long a stamp with these nanoseconds may be of more than one version.
func racyWindow(nsec int64) time.Duration {
	if nsec == 0 {
		return coarseTick + racyTime
	}
	return racyTime
}
