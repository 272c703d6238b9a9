// Package trust says who can change a file: what root runs, or runs because a file says so, may be changed by
// root alone.
//
// It looks at owners and modes of the file, of each directory above it, and of each link on the way to it. A sticky
// directory, such as /tmp, protects the entries of others, so its mode is good. It does not know of other paths to the
// same file, nor of servers of network file systems.
package trust

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links the kernel follows in one path (MAXSYMLINKS, <linux/namei.h>).
const maxLinks = 40

// Writer says who besides root and the user of this process can change what is at path, empty: nobody. The error says
// why that is not known.
func Writer(path string) (string, error) {
	var why string
	err := walk(path, func(at string, info fs.FileInfo) bool {
		if who := writer(at, info); who != "" {
			why = at + " can be changed by " + who
		}
		return why == ""
	})
	return why, err
}

// Links say who made the links on the way to a file. Of several, the highest counts.
type Links uint8

const (
	// OwnLinks: there are none, or the owner of the file owns all of them. A link of root is as good where root and the
	// owner of the file alone can put a file at its end.
	OwnLinks Links = iota

	// RootLinks: root owns one, or it lies in a directory that root alone can change. Another user may own it, or may have
	// put the file there, and may have no right to read the file.
	RootLinks

	// ForeignLinks: one belongs to a user who is neither root nor the owner of the file.
	ForeignLinks
)

// LinksTo says who made the links on the way to the file that was read at path, and that uid owns. Links above the
// directory of path do not count. If path leads to a file of another owner by now, or nowhere, it has changed since, and
// the result is ForeignLinks.
func LinksTo(path string, uid uint32) Links {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink == 0 && owner(info) == uid {
		return OwnLinks
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return ForeignLinks
	}
	links, last := OwnLinks, uid
	var ofRoot bool              // a link
	open, parent := false, false // others can change a directory on the way, and the last one
	err = walk(filepath.Join(above, filepath.Base(path)), func(at string, info fs.FileInfo) bool {
		last = owner(info)
		switch mode := info.Mode(); {
		case mode.IsDir():
			parent = last != 0 && last != uid || mode.Perm()&0o022 != 0
			open = open || parent && (last != 0 || mode&fs.ModeSticky == 0)
		case mode&fs.ModeSymlink == 0 || last == uid:
		case last == 0:
			ofRoot = true
		default:
			links = max(links, madeBy(at))
		}
		return true
	})
	switch {
	case err != nil || last != uid:
		return ForeignLinks
	case ofRoot && (open || parent):
		return max(links, RootLinks)
	}
	return links
}

// madeBy says who made a link that belongs neither to root nor to the owner of the file.
func madeBy(at string) Links {
	dir, err := os.Lstat(filepath.Dir(at))
	if err == nil && owner(dir) == 0 && dir.Mode().Perm()&0o022 == 0 {
		return RootLinks
	}
	return ForeignLinks
}

// walk calls visit with each directory, link and file on the way to path, from the root on, until it returns false.
func walk(path string, visit func(at string, info fs.FileInfo) bool) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at, rest, links := "/", strings.Split(path, "/"), 0
	for {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if !visit(at, info) {
			return nil
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			if links++; links > maxLinks {
				return &fs.PathError{Op: "follow", Path: path, Err: unix.ELOOP}
			}
			at, rest = filepath.Dir(at), append(strings.Split(to, "/"), rest...)
			if filepath.IsAbs(to) {
				at = "/"
			}
		}
		for len(rest) > 0 && (rest[0] == "" || rest[0] == ".") {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return nil
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// writer says who besides root and the user of this process can change one directory, link or file.
func writer(at string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case !ok:
		return "an owner whom its file system does not name"
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("its owner, user %d, who is not root", st.Uid)
	case mode&fs.ModeSymlink != 0, mode&fs.ModeSticky != 0 && mode.IsDir(), mode.Perm()&0o022 == 0, ReadOnly(at):
		return ""
	case mode.Perm()&0o002 != 0:
		return "everybody"
	case st.Gid != 0 && int(st.Gid) != os.Getegid():
		return fmt.Sprintf("its group %d, which is not that of root", st.Gid)
	case hasACL(at):
		return "others than root, by an access control list"
	}
	return ""
}

// hasACL reports whether there is an access control list: then the mode of the group is that of all whom it names.
func hasACL(path string) bool {
	_, err := unix.Lgetxattr(path, "system.posix_acl_access", nil)
	return err == nil
}

// ReadOnly reports whether nobody can write below this mount, whatever the modes say: volumes of a ConfigMap are so.
func ReadOnly(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}

func owner(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}
