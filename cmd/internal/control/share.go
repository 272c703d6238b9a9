package control

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"runtime"

	"golang.org/x/sys/unix"
)

// share gives a socket to the group that may ask, the first there is of readers and admins. The owner of a file may
// give it to a group that it is in, without CAP_CHOWN: this thread is in the group for a moment (setfsgid, CAP_SETGID).
func share(path string) error {
	gid, err := socketGroup()
	if err != nil || gid == noGroup {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SetfsgidRetGid(gid)
	if err != nil {
		return os.NewSyscallError("setfsgid", err)
	}
	defer unix.SetfsgidRetGid(before)
	return os.Lchown(path, -1, gid)
}

const noGroup = -1

// socketGroup returns the group that may ask, or noGroup.
func socketGroup() (int, error) {
	for _, name := range []string{readers, admins} {
		gid, err := groupID(name)
		switch {
		case err == nil:
			return gid, nil
		case !errors.As(err, new(user.UnknownGroupError)) && !errors.Is(err, fs.ErrNotExist): // of /etc/group
			return noGroup, err
		}
	}
	return noGroup, nil
}
