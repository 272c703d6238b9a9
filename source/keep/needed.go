package keep

import (
	"crypto/sha256"
	"os"
	"slices"
)

// dropCopy removes a copy that was replaced, unless decisions need it: then dropRetained does.
func (st *Store) dropCopy(name string, sum [sha256.Size]byte) {
	k := Version{name, sum}
	if st.needed()[k] {
		st.retained[k] = true
		return
	}
	_ = os.Remove(st.CopyPath(name, sum)) // or else as an orphan, at the next start
}

// dropRetained removes the copies that were retained for decisions, and that none needs now.
func (st *Store) dropRetained() {
	needed := st.needed()
	for k := range st.retained {
		if needed[k] {
			continue
		}
		delete(st.retained, k)
		if !st.counts(k.Name, k.Sum) {
			st.dropCopy(k.Name, k.Sum)
		}
	}
}

// counts reports whether this version of a file is recorded or about to be, or what a start may find
// while the disk does not have another.
func (st *Store) counts(name string, sum [sha256.Size]byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.records[name].Sum == sum || st.unwritten[name].Sum == sum ||
		st.unsynced[name].counts(sum) || st.syncing[name].counts(sum)
}

func (u unsynced) counts(sum [sha256.Size]byte) bool {
	return u.Sum == sum || slices.Contains(u.replaced, sum)
}

// unsyncedCopies returns the names of copies that a start may need while the disk does not have others. The caller holds st.mu.
func (st *Store) unsyncedCopies() map[string]bool {
	names := map[string]bool{}
	for _, files := range []map[string]unsynced{st.unsynced, st.syncing} {
		for name, u := range files {
			names[copyName(name, u.Sum)] = true
			for _, sum := range u.replaced {
				names[copyName(name, sum)] = true
			}
		}
	}
	return names
}

// retainNeeded notes copies that decisions of an earlier run need. The caller holds st.mu.
func (st *Store) retainNeeded() {
	for k := range st.needs {
		if k.exists() && st.records[k.Name].Sum != k.Sum {
			st.retained[k] = true
		}
	}
}
