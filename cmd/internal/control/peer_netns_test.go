//go:build netns

package control

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// withGroups has the groups of these names exist, and no others.
func withGroups(t *testing.T, ids map[string]int) {
	t.Helper()
	old := lookupGroup
	lookupGroup = func(name string) (*user.Group, error) {
		gid, ok := ids[name]
		if !ok {
			return nil, user.UnknownGroupError(name)
		}
		return &user.Group{Gid: strconv.Itoa(gid), Name: name}, nil
	}
	t.Cleanup(func() { lookupGroup = old })
}

// The socket is of the group svcproxy where there is one, else of that of the
// admins; of root's otherwise.
func TestSocketHasItsGroup(t *testing.T) {
	for _, tt := range []struct {
		groups map[string]int
		want   uint32
	}{
		{nil, 0},
		{map[string]int{readers: 4711}, 4711},
		{map[string]int{admins: 4712}, 4712},
		{map[string]int{readers: 4711, admins: 4712}, 4711},
	} {
		withGroups(t, tt.groups)
		dir := t.TempDir()
		stop := start(t, dir)
		fi, err := os.Stat(socketPath(dir))
		fatal.If(t, err)
		if st := fi.Sys().(*syscall.Stat_t); st.Gid != tt.want || st.Uid != 0 || fi.Mode().Perm() != 0o660 {
			t.Errorf("%v: the socket is of %d:%d with %v", tt.groups, st.Uid, st.Gid, fi.Mode())
		}
		stop()
	}
}

// A daemon that may not change groups shares its socket too, as that of the hardened unit.
func TestSharedWithoutRights(t *testing.T) {
	const outsider, member, admin = 4800, 4711, 4712
	dir := filepath.Join("/tmp", "svcproxy-shared-"+strconv.Itoa(os.Getpid())) // a path that others may search
	fatal.If(t, os.Mkdir(dir, 0o755))
	defer os.RemoveAll(dir)
	for _, tt := range []struct {
		groups map[string]int
		gid    int
		may    bool
	}{
		{map[string]int{readers: member}, member, true},
		{map[string]int{readers: member}, admin, false},
		{map[string]int{readers: member, admins: admin}, member, true},
		{map[string]int{readers: member, admins: admin}, admin, false},
		{map[string]int{admins: admin}, admin, true},
		{nil, member, false},
	} {
		withGroups(t, tt.groups)
		l, err := net.Listen("unix", socketPath(dir))
		fatal.If(t, err)
		fatal.If(t, os.Chmod(socketPath(dir), 0o660))
		fatal.If(t, withoutRights(func() error { return share(socketPath(dir)) }))
		_, err = clientAs(t, dir, outsider, outsider, []int{tt.gid}).connect(t.Context())
		if may := err == nil; may != tt.may || !may && !errors.Is(err, unix.EACCES) {
			t.Errorf("%v: a member of %d: %v, want that it may: %t", tt.groups, tt.gid, err, tt.may)
		}
		fatal.If(t, l.Close())
	}
}

// withoutRights calls fn on a thread of root that has no capability but CAP_SETGID, as that of the unit.
func withoutRights(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var few [2]unix.CapUserData
		few[0].Effective, few[0].Permitted = 1<<unix.CAP_SETGID, 1<<unix.CAP_SETGID
		err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &few[0])
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// A group that cannot be looked up is told, and the socket is there.
func TestSocketWithoutItsGroup(t *testing.T) {
	old := lookupGroup
	defer func() { lookupGroup = old }()
	lookupGroup = func(string) (*user.Group, error) { return nil, errors.New("no directory server") }
	s, err := Listen(t.TempDir())
	fatal.If(t, err)
	defer s.close()
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], "no directory server") || s.failed != nil {
		t.Errorf("warnings %q, error %v", w, s.failed)
	}
}

// Who may ask, and who may change something.
func TestRightsByPeer(t *testing.T) {
	const outsider, member, admin = 4800, 4711, 4712
	withGroups(t, map[string]int{readers: member, admins: admin})
	r := sampleRoutes()
	Post(r, "/v1/change", func(_ context.Context, p Peer, q string) (string, error) {
		return q + " by " + strconv.Itoa(int(p.UID)), nil
	})
	dir := filepath.Join("/tmp", "svcproxy-rights-"+strconv.Itoa(os.Getpid())) // a path that others may search
	defer os.RemoveAll(dir)
	defer serve(t, dir, r)()
	for _, tt := range []struct {
		name      string
		uid, gid  int
		groups    []int
		ask, tell error
	}{
		{"root", 0, 0, nil, nil, nil},
		{"nobody in particular", outsider, outsider, nil, ErrNoRights, ErrNoRights},
		{"a member by its first group", outsider, member, nil, nil, ErrForbidden},
		{"a member", outsider, outsider, []int{member}, nil, ErrForbidden},
		{"an admin who is no member", outsider, outsider, []int{admin}, ErrNoRights, ErrNoRights},
		{"an admin", outsider, outsider, []int{4000, member, admin}, nil, nil},
		{"an admin by the first group", outsider, admin, []int{member}, nil, nil},
		{"an admin of many groups", outsider, outsider, append(numbers(5000, 100), member, admin), nil, nil},
		{"a member whose number is the admins'", admin, outsider, []int{member}, nil, ErrForbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := clientAs(t, dir, tt.uid, tt.gid, tt.groups)
			var st Status
			if err := c.Ask(t.Context(), "/v1/status", nil, &st); !errors.Is(err, tt.ask) || (tt.ask == nil) != (err == nil) {
				t.Errorf("asking: %v, want %v", err, tt.ask)
			}
			c = clientAs(t, dir, tt.uid, tt.gid, tt.groups)
			var said string
			err := c.Tell(t.Context(), "/v1/change", "x", &said)
			if !errors.Is(err, tt.tell) || (tt.tell == nil) != (err == nil) {
				t.Errorf("changing: %v, want %v", err, tt.tell)
			}
			if want := "x by " + strconv.Itoa(tt.uid); tt.tell == nil && said != want {
				t.Errorf("said %q, want %q", said, want)
			}
			if errors.Is(err, ErrForbidden) && !strings.Contains(err.Error(), "members of the group svcproxy-admin") {
				t.Errorf("it does not say who may: %v", err)
			}
		})
	}
}

func numbers(from, n int) (list []int) {
	for i := range n {
		list = append(list, from+i)
	}
	return list
}

// clientAs returns a client whose one connection another user has made.
func clientAs(t *testing.T, dir string, uid, gid int, groups []int) *Client {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := becomeThread(uid, gid, groups); err != nil {
			done <- result{nil, err}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socketPath(dir)})
		}
		f := os.NewFile(uintptr(fd), "client")
		conn, fileErr := net.FileConn(f)
		f.Close()
		done <- result{conn, errors.Join(err, fileErr)}
	}()
	r := <-done
	c := NewClient(dir)
	c.connect = func(context.Context) (net.Conn, error) {
		if r.err != nil {
			return nil, r.err
		}
		return r.conn, nil
	}
	if r.err != nil && r.conn != nil {
		r.conn.Close()
	}
	return c
}

// becomeThread gives this thread alone another user and groups.
func becomeThread(uid, gid int, groups []int) error {
	list := []uint32{uint32(gid)} // whose address can be taken; it changes nothing
	for _, g := range groups {
		list = append(list, uint32(g))
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0])), 0); errno != 0 {
		return errno
	}
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); errno != 0 {
		return errno
	}
	return setThreadUID(uid)
}
