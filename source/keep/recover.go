package keep

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// Load reads the index. What it does not know because it is damaged or lost, the
// copies say: their names hold those of their files, and the start of a checksum.
func (st *Store) Load() {
	data, err := os.ReadFile(st.index())
	var damaged int
	if err == nil {
		st.records, st.lines, damaged = parseIndex(data)
	}
	if damaged > 0 {
		err = fmt.Errorf("%s: %d damaged lines", st.index(), damaged)
	}
	st.copies, st.unclean = st.findCopies(), st.stoppedUncleanly()
	if errors.Is(err, fs.ErrNotExist) && len(st.copies) == 0 {
		return
	}
	st.indexDamaged, st.indexIntact = err != nil, err == nil
	if err != nil {
		st.log.Warn("the index of last good versions is incomplete; recovering the rest from the copies", "err", err)
		st.recoverRecords()
	}
}

// findCopies returns the names of all copies by what they are of, the newest first.
func (st *Store) findCopies() map[string][]string {
	entries, err := os.ReadDir(st.lastgood)
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
func (st *Store) recoverRecords() {
	for name := range st.copies {
		if _, ok := st.records[name]; !ok && read.IsServiceFile(name) {
			st.recordCopy(name)
		}
	}
}

// Find returns what is recorded of a file or, where the index was damaged or lost, what its copies say.
func (st *Store) Find(name string) (Record, bool) {
	r, ok := st.recordOf(name)
	if !ok && st.indexDamaged {
		return st.recordCopy(name)
	}
	return r, ok
}

// recordCopy makes a record of the newest copy of a file that has none.
func (st *Store) recordCopy(name string) (Record, bool) {
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
func (st *Store) newestCopy(name string) (Record, []byte, bool) {
	for _, c := range st.copies[copyStem(name)] {
		path := filepath.Join(st.lastgood, c)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		data, _, err := disk.ReadContent(path, read.MaxFileSize)
		sum := sha256.Sum256(data)
		if err == nil && isCopy.FindStringSubmatch(c)[2] == hex.EncodeToString(sum[:])[:sumDigits] {
			return Record{Sum: sum, Since: info.ModTime(), At: info.ModTime()}, data, true
		}
	}
	return Record{}, nil, false
}

// StandIn returns what is used in place of a copy that cannot be read, and what that is: the same text in the history,
// else the newest older version that is kept, since the file was last removed. Nothing: there is none. The copy
// stays damaged, so that it is written again, with a line of the index.
func (st *Store) StandIn(name string, r Record) (other Record, text []byte, what string) {
	if other, text, what = st.findOther(name, r); what != "" {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.records[name] = other
	}
	return other, text, what
}

func (st *Store) findOther(name string, r Record) (other Record, text []byte, what string) {
	if text, ok := readHistory(st.stateDir(), name, r.Sum); ok {
		return r, text, "the same text in the history"
	}
	if older, text, ok := st.newestCopy(name); ok {
		return Record{older.Sum, r.Since, older.At}, text, "the one before it"
	}
	list, err := Histories(st.stateDir(), name)
	if err != nil {
		return Record{}, nil, ""
	}
	for _, v := range list {
		k := v.version()
		if !k.exists() { // what was there before was removed on purpose
			break
		}
		if text, ok := readHistory(st.stateDir(), name, k.Sum); ok {
			return Record{k.Sum, r.Since, v.At}, text, fmt.Sprintf("version %d of the history", v.Number)
		}
	}
	return Record{}, nil, ""
}
