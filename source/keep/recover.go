package keep

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	for stem := range r.found { // a name too long to stand in that of its copy is not known before it is asked for
		name := nameOf(stem)
		if _, ok := r.known[name]; !ok && read.IsServiceFile(name) {
			r.recordCopy(name)
		}
	}
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

// bootID changes with each boot of the host, random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot tells this boot of the host from others; empty: it is not known.
func Boot() string {
	text, _ := os.ReadFile(bootID)
	return strings.TrimSpace(string(text))
}

// markerPath is the path of a file that is there while the store is used, and says in
// which boot. One of another boot means that the host stopped without shutting
// down: then a file that was being replaced may be missing altogether.
func (r *records) markerPath() string { return r.dir.file("running") }

// stoppedUncleanly reports whether the host stopped without shutting down since this was last marked.
func (r *records) stoppedUncleanly() bool {
	was, err1 := os.ReadFile(r.markerPath())
	is, err2 := os.ReadFile(bootID)
	return err1 == nil && err2 == nil && !bytes.Equal(was, is)
}
