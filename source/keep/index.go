package keep

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// indexHeader is the first line of the index of last good versions. Then comes
// a line for each version that was accepted; of the lines of one file the last
// one counts:
//
//	5d2b91c3 9f86d0...0a08 2026-11-20T10:00:00.5Z 2026-11-21T09:30:00Z "web.toml"
//
// That is the CRC-32 of the rest of the line, the SHA-256 of the contents ("-":
// the file was removed), when the file was first accepted, when this version of
// it was, and the name as Go quotes it.
const indexHeader = "svcproxy lastgood 1\n"

// A Record is what the index says of one file. The zero record is of one that
// was removed.
type Record struct {
	Sum   [sha256.Size]byte
	Since time.Time // when the file was first accepted: the order of claims
	At    time.Time // when this version was
}

// Removed reports whether the file was removed.
func (r Record) Removed() bool { return r == Record{} }

// encode returns r as it stands in the index.
func (r Record) encode(name string) string {
	sum := "-"
	if !r.Removed() {
		sum = hex.EncodeToString(r.Sum[:])
	}
	return indexLine(sum + " " + stampText(r.Since) + " " + stampText(r.At) + " " + strconv.Quote(name))
}

// indexLine returns a line of an index that says rest: the CRC-32 of that, and that.
func indexLine(rest string) string {
	return fmt.Sprintf("%08x %s\n", crc32.ChecksumIEEE([]byte(rest)), rest)
}

// restOf returns what a line of an index says. It returns false when that is not as indexLine wrote it.
func restOf(line string) (rest string, ok bool) {
	_, rest, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	return rest, line == indexLine(rest)
}

func stampText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// parseRecord reads a line of the index. It returns false when that is not as
// encode wrote it.
func parseRecord(line string) (name string, r Record, ok bool) {
	rest, ok := restOf(line)
	f := strings.SplitN(rest, " ", 4)
	if !ok || len(f) != 4 {
		return "", Record{}, false
	}
	name, err := strconv.Unquote(f[3])
	if err != nil || !read.IsKeptName(name) {
		return "", Record{}, false
	}
	if f[0] == "-" {
		return name, Record{}, true
	}
	sum, ok := read.ParseID(f[0])
	since, err1 := time.Parse(time.RFC3339Nano, f[1])
	at, err2 := time.Parse(time.RFC3339Nano, f[2])
	return name, Record{sum, since, at}, ok && err1 == nil && err2 == nil
}

// parseIndex reads an index: what counts of it, how many lines it has, and how
// many of these are damaged.
func parseIndex(data []byte) (known map[string]Record, lines, damaged int) {
	known = map[string]Record{}
	body, ok := bytes.CutPrefix(data, []byte(indexHeader))
	if !ok {
		damaged++
	}
	for line := range strings.Lines(string(body)) {
		lines++
		name, r, ok := parseRecord(line)
		switch {
		case !ok:
			damaged++
		case r.Removed():
			delete(known, name)
		default:
			known[name] = r
		}
	}
	return known, lines, damaged
}

// A journal is an index on the disk: lines are added to it, and it is written again when too many do not count.
type journal struct {
	path  string
	lines int  // without the header
	whole bool // it is as we know it, and can be added to
}

// add adds n lines to an index that is whole, in one write.
func (j *journal) add(text string, n int) error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		j.whole = false // there may be half a line
		return err
	}
	j.lines += n
	return nil
}

// rewrite writes the index again, of n lines. Synced, even a power failure leaves one of the two.
func (j *journal) rewrite(text []byte, n int) error {
	err := replace(j.path, text, true)
	if err == nil {
		j.lines, j.whole = n, true
	}
	return err
}

// replace makes or replaces a file in one step.
func replace(path string, data []byte, sync bool) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return disk.Replace(path, filepath.Join(dir, tempName), sync, disk.Bytes(data))
}

// sumDigits is how much of a checksum, in hex, stands in the name of a copy.
const sumDigits = 12

// copyName returns the name of a copy: that of the file, with the start of the
// checksum before its extension. A name that is too long for that is replaced
// by its checksum, behind a dot, with which no service file begins.
func copyName(name string, sum [sha256.Size]byte) string {
	stem := copyStem(name)
	ext := filepath.Ext(stem)
	return strings.TrimSuffix(stem, ext) + "." + hex.EncodeToString(sum[:])[:sumDigits] + ext
}

// copyStem returns what the names of all copies of a file have in common: its own name, if that is short enough. That of
// a text of a server stands behind a dot, with escapes.
func copyStem(name string) string {
	stem := name
	if strings.Contains(name, "/") {
		stem = "." + url.PathEscape(name)
	}
	if len(stem)+1+sumDigits > read.MaxName {
		hash := sha256.Sum256([]byte(name))
		return "." + hex.EncodeToString(hash[:]) + filepath.Ext(name)
	}
	return stem
}

// nameOf returns what copyStem made a stem of, unless that was too long.
func nameOf(stem string) string {
	if name, err := url.PathUnescape(strings.TrimPrefix(stem, ".")); err == nil && read.IsTextName(name) && copyStem(name) == stem {
		return name
	}
	return stem
}

// isCopy matches what copyName returns: copyStem without its extension, the start of the checksum, the extension.
var isCopy = regexp.MustCompile(`(?s)^(.+)\.([0-9a-f]{12})\.(toml|json)$`)

// ErrDamaged says that a text is not what was written.
var ErrDamaged = errors.New("its checksum is not the recorded one")

// A Version names a version of a file. Its sum is zero where there is no file.
type Version struct {
	Name string
	Sum  [sha256.Size]byte
}

func (v Version) exists() bool { return v.Sum != [sha256.Size]byte{} }

// names returns the names of the copies of versions.
func names(versions ...map[Version]bool) map[string]bool {
	names := map[string]bool{}
	for _, list := range versions {
		for v := range list {
			if v.exists() {
				names[copyName(v.Name, v.Sum)] = true
			}
		}
	}
	return names
}

// indexSlack is how many lines of the index may be out of date before it is written
// again while running, beside as many as there are files: some 300 KB.
const indexSlack = 2000

// tempName is where a file is written before it takes the place of another.
const tempName = ".new"

// A copies is a directory that has copies of versions, and an index of them.
type copies string

func lastGoodDir(stateDir string) copies { return copies(filepath.Join(stateDir, "lastgood")) }

func historyDir(stateDir string) copies { return copies(filepath.Join(stateDir, "history")) }

func (d copies) file(name string) string { return filepath.Join(string(d), name) }

func (d copies) path(v Version) string { return d.file(copyName(v.Name, v.Sum)) }

// read returns the text of a version.
func (d copies) read(v Version) ([]byte, error) {
	data, _, err := disk.ReadContent(d.path(v), read.MaxFileSize)
	if err == nil && sha256.Sum256(data) != v.Sum {
		err = ErrDamaged
	}
	return data, err
}

// removeOrphans removes those of the found copies that are not needed.
func (d copies) removeOrphans(found []fs.DirEntry, needed func(name string) bool) {
	for _, e := range found {
		if name := e.Name(); isCopy.MatchString(name) && !needed(name) {
			_ = os.Remove(d.file(name)) // or else at the next start
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

// sync waits until the disk has a few copies and the index, or of many copies everything
// that their file system was given.
func (d copies) sync(versions []Version) error {
	if len(versions) > maxSyncEach {
		return d.syncAll()
	}
	for _, v := range versions {
		if !v.exists() { // the file was removed
			continue
		}
		if err := disk.Sync(d.path(v)); err != nil {
			return err
		}
	}
	return cmp.Or(disk.Sync(d.file("index")), disk.Sync(string(d)))
}

func (d copies) syncAll() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Syncfs(int(f.Fd()))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a filter of system calls knows the older one only
		unix.Sync()
		return nil
	}
	return os.NewSyscallError("syncfs "+string(d), err)
}

// maxSyncEach is how many files are synced one by one: a sync of the whole file system also
// waits for what everybody else has written to it.
const maxSyncEach = 8
