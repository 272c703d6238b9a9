package file

import (
	"crypto/sha256"
	"os"
	"slices"
)

// dropCopy removes a copy that was replaced, unless decisions need it: then dropRetained does.
func (st *store) dropCopy(name string, sum [sha256.Size]byte) {
	k := version{name, sum}
	if st.needed()[k] {
		st.retained[k] = true
		return
	}
	_ = os.Remove(st.copyPath(name, sum)) // or else as an orphan, at the next start
}

// dropRetained removes the copies that were retained for decisions, and that none needs now.
func (st *store) dropRetained() {
	needed := st.needed()
	for k := range st.retained {
		if needed[k] {
			continue
		}
		delete(st.retained, k)
		if !st.counts(k.name, k.sum) {
			st.dropCopy(k.name, k.sum)
		}
	}
}

// counts reports whether this version of a file is recorded or about to be, or what a start may find
// while the disk does not have another.
func (st *store) counts(name string, sum [sha256.Size]byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.records[name].sum == sum || st.unwritten[name].sum == sum ||
		st.unsynced[name].counts(sum) || st.syncing[name].counts(sum)
}

func (u unsynced) counts(sum [sha256.Size]byte) bool {
	return u.sum == sum || slices.Contains(u.replaced, sum)
}

// unsyncedCopies returns the names of copies that a start may need while the disk does not have others. The caller holds st.mu.
func (st *store) unsyncedCopies() map[string]bool {
	names := map[string]bool{}
	for _, files := range []map[string]unsynced{st.unsynced, st.syncing} {
		for name, u := range files {
			names[copyName(name, u.sum)] = true
			for _, sum := range u.replaced {
				names[copyName(name, sum)] = true
			}
		}
	}
	return names
}

// retainNeeded notes copies that decisions of an earlier run need. The caller holds st.mu.
func (st *store) retainNeeded() {
	for k := range st.needs {
		if k.exists() && st.records[k.name].sum != k.sum {
			st.retained[k] = true
		}
	}
}
