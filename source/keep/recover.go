package keep

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// Load reads the index. What it does not know because it is damaged or lost, the
// copies say: their names hold those of their files, and the start of a checksum.
func (r *records) Load() {
	data, err := os.ReadFile(r.index.path)
	var damaged int
	if err == nil {
		r.known, r.index.lines, damaged = parseIndex(data)
	}
	if damaged > 0 {
		err = fmt.Errorf("%s: %d damaged lines", r.index.path, damaged)
	}
	r.found, r.unclean = r.dir.find(), r.stoppedUncleanly()
	if errors.Is(err, fs.ErrNotExist) && len(r.found) == 0 {
		return
	}
	r.indexDamaged, r.index.whole = err != nil, err == nil
	if err == nil {
		return
	}
	r.log.Warn("the index of last good versions is incomplete; recovering the rest from the copies", "err", err)
	for name := range r.found { // one too long to stand in the name of its copy is not known before it is asked for
		if _, ok := r.known[name]; !ok && read.IsServiceFile(name) {
			r.recordCopy(name)
		}
	}
}

// find returns the names of all copies by what they are of, the newest first.
func (d copies) find() map[string][]string {
	entries, err := os.ReadDir(string(d))
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

// Find returns what is recorded of a file or, where the index was damaged or lost, what its copies say.
func (r *records) Find(name string) (Record, bool) {
	rec, ok := r.recordOf(name)
	if !ok && r.indexDamaged {
		return r.recordCopy(name)
	}
	return rec, ok
}

// recordCopy makes a record of the newest copy of a file that has none.
func (r *records) recordCopy(name string) (Record, bool) {
	rec, _, ok := r.newestCopy(name)
	if ok {
		r.record(name, rec)
	}
	return rec, ok
}

// newestCopy returns the newest good copy there is of a file, whatever the index
// says. It is the one before the last when the last has not reached the disk.
func (r *records) newestCopy(name string) (Record, []byte, bool) {
	for _, c := range r.found[copyStem(name)] {
		path := r.dir.file(c)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		data, _, err := disk.ReadContent(path, read.MaxFileSize)
		sum := sha256.Sum256(data)
		if err == nil && c == copyName(name, sum) {
			return Record{Sum: sum, Since: info.ModTime(), At: info.ModTime()}, data, true
		}
	}
	return Record{}, nil, false
}

// StandIn returns what is used in place of a copy that cannot be read, and what that is: the same text in the history,
// else the newest older version that is kept, since the file was last removed. Nothing: there is none. The copy
// stays damaged, so that it is written again, with a line of the index.
func (r *records) StandIn(name string, rec Record) (other Record, text []byte, what string) {
	if other, text, what = r.findOther(name, rec); what != "" {
		r.record(name, other)
	}
	return other, text, what
}

func (r *records) findOther(name string, rec Record) (other Record, text []byte, what string) {
	history := historyDir(r.stateDir())
	if text, err := history.read(Version{name, rec.Sum}); err == nil {
		return rec, text, "the same text in the history"
	}
	if older, text, ok := r.newestCopy(name); ok {
		return Record{older.Sum, rec.Since, older.At}, text, "the one before it"
	}
	list, err := Histories(r.stateDir(), name)
	if err != nil {
		return Record{}, nil, ""
	}
	for _, rev := range list {
		v := rev.version()
		if !v.exists() { // what was there before was removed on purpose
			break
		}
		if text, err := history.read(v); err == nil {
			return Record{v.Sum, rec.Since, rev.At}, text, fmt.Sprintf("version %d of the history", rev.Number)
		}
	}
	return Record{}, nil, ""
}
