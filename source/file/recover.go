package file

import (
	"bytes"
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
)

// load reads the index. What it does not know because it is damaged or lost, the
// copies say: their names hold those of their files, and the start of a checksum.
func (st *store) load() {
	data, err := os.ReadFile(st.index())
	var damaged int
	if err == nil {
		st.records, st.lines, damaged = parseIndex(data)
	}
	if damaged > 0 {
		err = fmt.Errorf("%s: %d damaged lines", st.index(), damaged)
	}
	st.copies, st.crashed = st.find(), st.lostPower()
	if errors.Is(err, fs.ErrNotExist) && len(st.copies) == 0 {
		return
	}
	st.suspect, st.whole = err != nil, err == nil
	if err != nil {
		st.log.Warn("the index of last good versions of service files is not whole: their copies say what it does not", "err", err)
		st.recover()
	}
}

// bootID changes with each boot of the host, random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// marker is the path of a file that is there while the store is used, and says in
// which boot. One of another boot means that the host stopped without shutting
// down: then a file that was being replaced may be missing altogether.
func (st *store) marker() string { return filepath.Join(st.dir, "running") }

// lostPower reports whether the host stopped without shutting down since this was last marked.
func (st *store) lostPower() bool {
	was, err1 := os.ReadFile(st.marker())
	is, err2 := os.ReadFile(bootID)
	return err1 == nil && err2 == nil && !bytes.Equal(was, is)
}

// mark says that the store is used from now on.
func (st *store) mark() {
	is, err := os.ReadFile(bootID)
	if err == nil {
		err = st.replace(filepath.Base(st.marker()), is, true)
	}
	st.marked = err == nil
	st.note(err)
}

// unmark says that it is not used any more.
func (st *store) unmark() {
	if st.marked {
		_ = os.Remove(st.marker()) // or else missing files are kept until somebody reloads
	}
}

// find returns the names of all copies by what they are of, the newest first.
func (st *store) find() map[string][]string {
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

// recover makes records of what only copies know. A name too long to stand in that
// of its copy is not known before somebody asks for it, see fallBack.
func (st *store) recover() {
	for name := range st.copies {
		if _, ok := st.records[name]; !ok && isServiceFile(name) {
			st.adopt(name)
		}
	}
}

// adopt makes a record of the newest copy of a file that has none.
func (st *store) adopt(name string) (record, bool) {
	r, _, ok := st.fallBack(name)
	if ok {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.records[name] = r
	}
	return r, ok
}

// fallBack returns the newest good copy there is of a file, whatever the index
// says. It is the one before the last when the last has not reached the disk.
func (st *store) fallBack(name string) (record, []byte, bool) {
	for _, c := range st.copies[copyStem(name)] {
		path := filepath.Join(st.dir, c)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		data, _, err := readContent(path, maxFileSize)
		sum := sha256.Sum256(data)
		if err == nil && isCopy.FindStringSubmatch(c)[2] == hex.EncodeToString(sum[:])[:sumDigits] {
			return record{sum: sum, since: info.ModTime(), at: info.ModTime()}, data, true
		}
	}
	return record{}, nil, false
}

// tidy does what can wait until all services have been handed on: it writes the
// index anew if that has lines that do not count, and removes copies without a
// record, which the process was killed or stopped before it could do. It returns
// the files whose copy is missing.
func (st *store) tidy() (missing []string) {
	st.compact(0)
	entries, err := os.ReadDir(st.dir)
	if err != nil {
		return nil // nothing is known
	}
	if err := st.sync(false); err != nil { // what an earlier run wrote last may not be on the disk
		st.note(err)
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	owner := make(map[string]string, len(st.records))
	for name, r := range st.records {
		owner[copyName(name, r.sum)] = name
	}
	for name, e := range st.pending {
		owner[copyName(name, e.sum)] = name
	}
	for _, e := range entries {
		name := e.Name()
		if _, ok := owner[name]; !ok && isCopy.MatchString(name) {
			_ = os.Remove(filepath.Join(st.dir, name))
		}
		delete(owner, name)
	}
	for _, name := range owner {
		missing = append(missing, name)
	}
	return missing
}

// compact rewrites the index if it is damaged, or has more than slack lines that
// do not count.
func (st *store) compact(slack int) {
	st.mu.Lock()
	n := len(st.records)
	st.mu.Unlock()
	if st.lines > n+slack || st.suspect && !st.whole {
		st.note(st.rewrite())
	}
}

// renew writes the copy of a file again that is missing, if v is what it was of.
func (st *store) renew(name string, v *version) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	if _, busy := st.pending[name]; ok && !busy && r.sum == v.id {
		st.pending[name] = entry{r, v}
		st.wake()
	}
}
