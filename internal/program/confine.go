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

// confine drops all capabilities of this thread, and every way to regain them. The program that this thread executes inherits
// that. With a user, confine switches to this user and its primary group only. Without a user, the program runs as the user of
// the daemon. If that is root, it can write files of root even without capabilities, so confine refuses a program that other
// users can change.
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

// refuseChangeable returns an error for a program that a user other than root and the user of this process can change.
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

// becomeUser sets the user of this process, by its name in the user database (/etc/passwd).
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
	if uid == os.Geteuid() { // no change is needed, and this process may lack the right to change its user
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

// dropBounding empties the bounding set, as far as this process is allowed to. svcproxy.service leaves a few capabilities in
// it, which a process with no_new_privs cannot gain.
func dropBounding() {
	for c := uintptr(0); c < 64; c++ { // capabilities(7): Linux 5.9 and later have 41; the rest fail
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
}

// dropCapabilities empties the other capability sets. With no_new_privs, executing a program as root does not restore them.
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

// reason returns the errno text of an error, without paths, because the reader knows them. Other errors are unchanged.
func reason(err error) string {
	if errno, is := errors.AsType[unix.Errno](err); is {
		return errno.Error()
	}
	return err.Error()
}
