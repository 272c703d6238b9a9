package control

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The groups that have rights. They need not exist.
const (
	readers = "svcproxy"       // may ask
	admins  = "svcproxy-admin" // may change what the daemon does, if they are readers too
)

// A Peer is the process that asks, as the kernel knows it.
type Peer struct {
	PID int
	UID uint32

	groups []uint32 // all that it is in
	err    error    // why it is not known
	writes bool     // it may change what the daemon does, as far as is known when it connects
}

// Network and String make it the address of its end of the connection.
func (Peer) Network() string  { return "unix" }
func (p Peer) String() string { return fmt.Sprintf("process %d of user %d", p.PID, p.UID) }

type peerKey struct{}

// withPeer notes who is at the other end of a connection.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, conn.RemoteAddr())
}

// credentials returns who is at the other end of a unix socket.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, cmp.Or(err, failed)
}

// peerOf returns who is at the other end of conn.
func peerOf(conn *net.UnixConn) Peer {
	cred, err := credentials(conn)
	if err != nil {
		return Peer{err: err}
	}
	p := Peer{PID: int(cred.Pid), UID: cred.Uid, groups: []uint32{cred.Gid}}
	if more, err := peerGroups(conn); err == nil { // without them it has fewer rights
		p.groups = append(p.groups, more...)
	}
	p.writes = p.mayChange() == nil
	return p
}

// maxGroups is how many groups a process can be in, NGROUPS_MAX of <linux/limits.h>.
const maxGroups = 65536

// peerGroups returns the supplementary groups of who connected, as they were then (SO_PEERGROUPS, Linux 4.13).
func peerGroups(conn *net.UnixConn) (groups []uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		for n := 32; n <= maxGroups; n *= 2 {
			groups = make([]uint32, n)
			size := uint32(4 * n)
			_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno != unix.ERANGE {
				groups = groups[:min(n, int(size)/4)]
				return
			}
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return groups, err
}

// mayChange returns why a peer may not change what the daemon does; nil: it may. Root may,
// and the daemon's own user, and the members of the group svcproxy-admin.
func (p Peer) mayChange() error {
	switch {
	case p.err != nil:
		return fmt.Errorf("who asks is not known: %w", p.err)
	case p.UID == 0 || p.UID == uint32(os.Geteuid()):
		return nil
	}
	gid, err := groupID(admins)
	if err == nil && slices.Contains(p.groups, uint32(gid)) {
		return nil
	}
	return fmt.Errorf("%s may ask, and change nothing: that is for root and the members of the group %s", p, admins)
}

// groupID returns the number of a group.
func groupID(name string) (int, error) {
	g, err := lookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// lookupGroup is user.LookupGroup, except in tests.
var lookupGroup = user.LookupGroup
