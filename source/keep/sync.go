package keep

import (
	"cmp"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
)

// maxSyncEach is how many files are synced one by one: a sync of the whole file system also
// waits for what everybody else has written to it.
const maxSyncEach = 8

// noteUnsynced notes what was written. The caller holds st.mu.
func (st *Store) noteUnsynced(j job) {
	u := unsynced{j.Entry, j.data, st.unsynced[j.name].replaced}
	if !j.old.Removed() && copyName(j.name, j.old.Sum) != copyName(j.name, j.Sum) {
		u.replaced = append(u.replaced, j.old.Sum)
	}
	st.unsynced[j.name] = u
}

// beginSync has a goroutine wait for the disk, which may take its time, unless one does.
func (st *Store) beginSync() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.syncing != nil || len(st.unsynced) == 0 {
		return
	}
	st.syncing, st.unsynced = st.unsynced, map[string]unsynced{}
	files, news := st.syncing, st.history.takeNews()
	go func() {
		s := synced{err: st.sync(files)}
		if s.err == nil && news {
			s.history = disk.Sync(st.history.index())
		}
		st.synced <- s
	}()
}

// endSync removes what was replaced by what the disk has now. Where it could not be asked, nobody knows what it has,
// and all is written again.
func (st *Store) endSync(s synced) {
	st.mu.Lock()
	done := st.syncing
	st.syncing = nil
	if s.err != nil {
		st.indexIntact = false
		st.writeAgain(done)
	}
	st.mu.Unlock()
	if s.err == nil {
		st.history.noteSynced(s.history)
		st.dropReplaced(done)
	}
	st.noteError(s.err)
}

// writeAgain has what was synced and what was written since written again, when retry or another change comes to it.
// The caller holds st.mu.
func (st *Store) writeAgain(synced map[string]unsynced) {
	for name, u := range synced {
		if newer, ok := st.unsynced[name]; ok {
			newer.replaced = slices.Concat(u.replaced, newer.replaced)
			u = newer
		}
		st.unsynced[name] = u
	}
	for name, u := range st.unsynced {
		st.damaged[name] = true
		if _, ok := st.unwritten[name]; ok {
			continue
		}
		if u.Version != nil {
			u.Version.Data = u.data
		}
		st.unwritten[name] = u.Entry
	}
}

func (st *Store) dropReplaced(files map[string]unsynced) {
	for name, u := range files {
		for _, sum := range u.replaced {
			if !st.counts(name, sum) {
				st.dropCopy(name, sum)
			}
		}
	}
}

// sync waits until the disk has what was written of a few files, or of many everything
// that the file system of the store was given.
func (st *Store) sync(files map[string]unsynced) error {
	if len(files) > maxSyncEach {
		return st.syncAll()
	}
	for name, u := range files {
		if u.Version == nil { // it has no copy
			continue
		}
		if err := disk.Sync(st.CopyPath(name, u.Sum)); err != nil {
			return err
		}
	}
	return cmp.Or(disk.Sync(st.index()), disk.Sync(st.lastgood))
}

func (st *Store) syncAll() error {
	d, err := os.Open(st.lastgood)
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Syncfs(int(d.Fd()))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a filter of system calls knows the older one only
		unix.Sync()
		return nil
	}
	return os.NewSyscallError("syncfs "+st.lastgood, err)
}
