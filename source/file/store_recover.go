package file

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// loadIndex reads the index. What it does not know because it is damaged or lost, the
// copies say: their names hold those of their files, and the start of a checksum.
func (st *store) loadIndex() {
	data, err := os.ReadFile(st.index())
	var damaged int
	if err == nil {
		st.records, st.lines, damaged = parseIndex(data)
	}
	if damaged > 0 {
		err = fmt.Errorf("%s: %d damaged lines", st.index(), damaged)
	}
	st.copies, st.uncleanStop = st.findCopies(), st.stoppedUncleanly()
	if errors.Is(err, fs.ErrNotExist) && len(st.copies) == 0 {
		return
	}
	st.indexDamaged, st.indexIntact = err != nil, err == nil
	if err != nil {
		st.log.Warn("the index of last good versions of service files is not whole: their copies say what it does not", "err", err)
		st.recoverRecords()
	}
}

// findCopies returns the names of all copies by what they are of, the newest first.
func (st *store) findCopies() map[string][]string {
	entries, err := os.ReadDir(st.dir)
	if err != nil {
		return nil // nothing is known
	}
	infos := map[string]fs.FileInfo{}
	found := map[string][]string{}
	for _, e := range entries {
		info, err := e.Info()
		if m := isCopy.FindStringSubmatch(e.Name()); m != nil && err == nil {
			infos[e.Name()] = info
			found[m[1]+"."+m[3]] = append(found[m[1]+"."+m[3]], e.Name())
		}
	}
	for _, names := range found {
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(infos[b].ModTime().Compare(infos[a].ModTime()), strings.Compare(a, b))
		})
	}
	return found
}

// recoverRecords makes records of what only copies know. A name too long to stand in that
// of its copy is not known before it is asked for, see newestCopy.
func (st *store) recoverRecords() {
	for name := range st.copies {
		if _, ok := st.records[name]; !ok && read.IsServiceFile(name) {
			st.recordCopy(name)
		}
	}
}

// recordCopy makes a record of the newest copy of a file that has none.
func (st *store) recordCopy(name string) (record, bool) {
	r, _, ok := st.newestCopy(name)
	if ok {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.records[name] = r
	}
	return r, ok
}

// newestCopy returns the newest good copy there is of a file, whatever the index
// says. It is the one before the last when the last has not reached the disk.
func (st *store) newestCopy(name string) (record, []byte, bool) {
	for _, c := range st.copies[copyStem(name)] {
		path := filepath.Join(st.dir, c)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		data, _, err := disk.ReadContent(path, read.MaxFileSize)
		sum := sha256.Sum256(data)
		if err == nil && isCopy.FindStringSubmatch(c)[2] == hex.EncodeToString(sum[:])[:sumDigits] {
			return record{sum: sum, since: info.ModTime(), at: info.ModTime()}, data, true
		}
	}
	return record{}, nil, false
}

// standIn returns what is used in place of a copy that cannot be read, and what that is: the same text in the history,
// else the newest older version that is kept, since the file was last removed. Nothing: there is none.
func (st *store) standIn(name string, r record) (other record, text []byte, what string) {
	if text, ok := readHistory(st.stateDir(), name, r.sum); ok {
		return r, text, "the same text in the history"
	}
	if older, text, ok := st.newestCopy(name); ok {
		return record{older.sum, r.since, older.at}, text, "the one before it"
	}
	list, err := Histories(st.stateDir(), name)
	if err != nil {
		return record{}, nil, ""
	}
	for _, v := range list {
		sum, ok := v.sum()
		if !ok { // what was there before was removed on purpose
			break
		}
		if text, ok := readHistory(st.stateDir(), name, sum); ok {
			return record{sum, r.since, v.At}, text, fmt.Sprintf("version %d of the history", v.Number)
		}
	}
	return record{}, nil, ""
}

// damagedCopies returns the files whose copy is there and is not what is recorded: a power failure may have cut it off.
func (st *store) damagedCopies() (names []string) {
	for _, name := range st.recordedNames() {
		r, ok := st.recordOf(name)
		if !ok {
			continue
		}
		if _, err := st.read(name, r); err != nil && !errors.Is(err, fs.ErrNotExist) {
			names = append(names, name)
		}
	}
	return names
}

// removeOrphans does what can wait until all services have been handed on: it writes the
// index again if that has lines that do not count, and removes those of the found copies
// without a record that nothing needs, which the process was killed or stopped before it could do. The disk must
// have all that an earlier run wrote. It returns the files whose copy is missing.
func (st *store) removeOrphans(found []fs.DirEntry) (missing []string) {
	st.compact(0)
	st.mu.Lock()
	defer st.mu.Unlock()
	owner := make(map[string]string, len(st.records))
	for name, r := range st.records {
		owner[copyName(name, r.sum)] = name
	}
	for name, e := range st.pending {
		owner[copyName(name, e.sum)] = name
	}
	needed := copyNames(st.needs)
	maps.Copy(needed, st.unsyncedCopies())
	st.retainNeeded()
	for _, e := range found {
		name := e.Name()
		if _, ok := owner[name]; !ok && !needed[name] && isCopy.MatchString(name) {
			_ = os.Remove(filepath.Join(st.dir, name))
		}
		delete(owner, name)
	}
	for name, of := range owner {
		if _, err := os.Lstat(filepath.Join(st.dir, name)); err != nil { // else it was written since
			missing = append(missing, of)
		}
	}
	return missing
}
