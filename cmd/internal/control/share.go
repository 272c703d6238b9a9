package control

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"slices"

	"golang.org/x/sys/unix"
)

// share lets the groups that may ask use a socket of mode 0660. The first becomes its group, where this process
// has CAP_CHOWN. Otherwise, and for the second, there is an access control list, which the owner of a file may write
// without a right of any kind; systemd takes a run directory back that was given to a group.
func share(path string) error {
	gids, err := socketGroups()
	if err != nil || len(gids) == 0 {
		return err
	}
	err = os.Lchown(path, -1, int(gids[0]))
	if err == nil && len(gids) == 1 {
		return nil
	}
	if listErr := unix.Lsetxattr(path, "system.posix_acl_access", accessList(gids), 0); listErr != nil {
		return errors.Join(err, listErr)
	}
	return nil
}

// socketGroups returns the groups that may ask, of those there are.
func socketGroups() (gids []uint32, err error) {
	for _, name := range []string{readers, admins} {
		gid, err := groupID(name)
		switch {
		case err == nil:
			gids = append(gids, uint32(gid))
		case !errors.As(err, new(user.UnknownGroupError)) && !errors.Is(err, fs.ErrNotExist): // of /etc/group
			return nil, err
		}
	}
	return gids, nil
}

// Entries of an access control list, <linux/posix_acl.h> and <linux/posix_acl_xattr.h>.
const (
	aclVersion  = 2
	aclOwner    = 0x01
	aclOwnGroup = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOthers   = 0x20
	aclNobody   = ^uint32(0) // in entries that are of nobody by number

	mayReadAndWrite = 6
)

// accessList returns the list of mode 0660 with groups that may do what the owner may.
func accessList(gids []uint32) []byte {
	list := binary.LittleEndian.AppendUint32(nil, aclVersion)
	add := func(tag, may uint16, id uint32) {
		list = binary.LittleEndian.AppendUint16(list, tag)
		list = binary.LittleEndian.AppendUint16(list, may)
		list = binary.LittleEndian.AppendUint32(list, id)
	}
	add(aclOwner, mayReadAndWrite, aclNobody)
	add(aclOwnGroup, mayReadAndWrite, aclNobody)
	for _, gid := range slices.Compact(slices.Sorted(slices.Values(gids))) {
		add(aclGroup, mayReadAndWrite, gid)
	}
	add(aclMask, mayReadAndWrite, aclNobody)
	add(aclOthers, 0, aclNobody)
	return list
}
