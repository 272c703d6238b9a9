package program

import (
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/trust"
)

// confine takes from this thread, and so from the program that it becomes, every capability and every way to get one.
// With a user it becomes that user, with its primary group and no other. Without, it stays the user of the daemon, as
// root may then write what root owns: it refuses a program that others can change.
func confine(user, program string) error {
	runtime.LockOSThread()
	if user == "" {
		if err := refuseChangeable(program); err != nil {
			return err
		}
	}
	dropBounding()
	if user != "" {
		if err := becomeUser(user); err != nil {
			return fmt.Errorf("running it as user %s: %w", user, err)
		}
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("dropping the capabilities of its program: %w", err)
	}
	return nil
}

// refuseChangeable returns an error for a program that others than root and the user of this process can change.
func refuseChangeable(program string) error {
	why, err := trust.Writer(program)
	if err != nil {
		return errors.New(reason(err))
	}
	if why != "" {
		return fmt.Errorf("%s: it does not run as user %d", why, os.Geteuid())
	}
	return nil
}

// becomeUser sets the user of all of this process, by its name in the database of users (/etc/passwd).
func becomeUser(name string) error {
	u, err := osuser.Lookup(name)
	if err != nil {
		return errors.New("there is no such user")
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	if uid == 0 {
		return errors.New("it is root")
	}
	if uid == os.Geteuid() { // this process may have no right to change that, and need none
		return nil
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("leaving the groups of svcproxy: %w", err)
	}
	if err := unix.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("taking its group: %w", err)
	}
	return unix.Setresuid(uid, uid, uid)
}

// dropBounding empties the bounding set, as far as this process may: svcproxy.service leaves a few in it, which
// nothing can get that has no_new_privs.
func dropBounding() {
	for c := uintptr(0); c < 64; c++ { // capabilities(7): 41 in Linux 5.9 and later; those that do not exist are an error
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
}

// dropCapabilities empties the other sets. With no_new_privs, a program of root that begins gets none back.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData // 32 capabilities each
	return unix.Capset(&header, &none[0])
}

// reason returns an error without paths, which the reader knows: what the kernel said, if it did.
func reason(err error) string {
	if errno, is := errors.AsType[unix.Errno](err); is {
		return errno.Error()
	}
	return err.Error()
}
