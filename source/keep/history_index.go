package keep

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	// defaultKeep is how many versions of a file are kept.
	defaultKeep = 20

	// historyBlocks bounds the room that all old versions take, in blocks of
	// blockSize: 128 MiB, and as many versions at most.
	historyBlocks = 32768
	blockSize     = 4096
)

// A history keeps the versions of files that were accepted before, beside the store: an
// index of them, and the copies that the store had, as links to these. All of it
// happens after the store has written what it needs, and what fails here
// hinders nothing else.
type history struct {
	dir  copies
	log  *slog.Logger
	keep atomic.Int64 // of each file; 0: defaultKeep

	// Of the goroutine of the store.
	said   string // why the last write failed; empty: it did not
	loaded bool
	list   []Revision // by number
	pruned int        // how many prune left, the last time
	index  journal
	news   bool // it has grown, and the disk was not asked since
}

func newHistory(stateDir string, log *slog.Logger) *history {
	dir := historyDir(stateDir)
	return &history{dir: dir, log: log, index: journal{path: dir.file("index")}}
}

// load reads the index. One that is there and cannot be read stays: it is tried again with the next change.
func (h *history) load(needed map[Version]bool) error {
	data, err := os.ReadFile(h.index.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the versions that are kept: %w", err)
	}
	if h.loaded = true; err == nil {
		h.list, h.index.whole = parseRevisions(data)
		h.index.lines = len(h.list)
	}
	if h.index.whole { // else nobody knows what it named
		h.removeOrphans(needed)
	}
	return nil
}

// removeOrphans removes copies that the index does not name and nothing needs: a process was
// killed between the two.
func (h *history) removeOrphans(needed map[Version]bool) {
	named := names(needed)
	for _, r := range h.list {
		if v := r.version(); v.exists() {
			named[copyName(v.Name, v.Sum)] = true
		}
	}
	if found, err := os.ReadDir(string(h.dir)); err == nil { // else nothing is known
		h.dir.removeOrphans(found, func(name string) bool { return named[name] })
	}
}

// add notes what was accepted, once its copies are in the directory from.
func (h *history) add(from copies, changes []*change, needed map[Version]bool) {
	if !h.loaded {
		if err := h.load(needed); err != nil {
			h.noteError(err)
			return
		}
	}
	err := os.MkdirAll(string(h.dir), 0o700)
	var news []Revision
	for _, c := range changes {
		if err == nil {
			news, err = h.take(from, c, news)
		}
	}
	if err == nil && len(news) > 0 {
		err = h.write(news)
	}
	if h.pruneDue() {
		h.prune(needed)
	}
	h.noteError(err)
}

// take keeps the copies of a change, and returns news with what is to be added for it.
func (h *history) take(from copies, c *change, news []Revision) ([]Revision, error) {
	next := len(news) + 1
	if len(h.list) > 0 {
		next += h.list[len(h.list)-1].Number
	}
	if c.old.Sum == c.Sum { // it was written again
		if c.Version == nil || !h.has(c.name, c.Sum) {
			return news, nil
		}
		return news, h.keepCopy(from, Version{c.name, c.Sum}, c.data)
	}
	if !c.old.Removed() && !h.has(c.name, c.old.Sum) { // of a version without a history, or dropped
		if h.keepCopy(from, Version{c.name, c.old.Sum}, nil) == nil { // else it is gone already
			news = append(news, Revision{Number: next, File: c.name, Sum: read.IDText(c.old.Sum), At: c.old.At, UID: -1})
			next++
		}
	}
	r := Revision{Number: next, File: c.name, At: c.At, UID: -1, Diff: DiffOf(c.Was, c.Version)}
	if c.Version == nil {
		r.At = time.Now().Round(0)
		return append(news, r), nil
	}
	r.Sum, r.Services, r.Size, r.UID = read.IDText(c.Sum), len(c.Version.Services), c.Version.Size, int(c.Version.UID.Load())
	if u, err := user.LookupId(strconv.Itoa(r.UID)); err == nil {
		r.Owner = u.Username
	}
	return append(news, r), h.keepCopy(from, Version{c.name, c.Sum}, c.data)
}

// keepCopy links a copy of the store, or writes it where links cannot be made. The link takes the place of what is
// there: a power failure may have left that cut off.
func (h *history) keepCopy(from copies, v Version, data []byte) error {
	temp, to := h.dir.file(tempName), h.dir.path(v)
	_ = os.Remove(temp) // as a rule there is none
	err := os.Link(from.path(v), temp)
	if err == nil {
		err = os.Rename(temp, to)
		_ = os.Remove(temp) // which rename leaves where both are one file
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if data == nil {
		if data, _, err = disk.ReadContent(from.path(v), read.MaxFileSize); err != nil {
			return err
		}
	}
	return replace(to, data, true)
}

func (h *history) has(name string, sum [sha256.Size]byte) bool {
	text := read.IDText(sum)
	return slices.ContainsFunc(h.list, func(r Revision) bool { return r.File == name && r.Sum == text })
}

func linesOf(list []Revision) string {
	var b strings.Builder
	for _, r := range list {
		b.WriteString(r.encode())
	}
	return b.String()
}

// write adds revisions to the index, of which the disk is asked later.
func (h *history) write(news []Revision) error {
	if !h.index.whole {
		if err := h.rewrite(); err != nil {
			return err
		}
	}
	if err := h.index.add(linesOf(news), len(news)); err != nil {
		return err
	}
	h.list, h.news = append(h.list, news...), true
	return nil
}

// rewrite writes the index again.
func (h *history) rewrite() error { return h.index.rewrite([]byte(linesOf(h.list)), len(h.list)) }

// takeNews reports whether the index has grown since it was last called.
func (h *history) takeNews() bool {
	news := h.news
	h.news = false
	return news
}

// noteSynced notes whether the disk has the index.
func (h *history) noteSynced(err error) {
	if err != nil {
		h.index.whole = false // nobody knows what it has
		h.noteError(err)
	}
}

// fewRevisions are looked through at every change. A longer index is when it has
// grown by a sixteenth: a directory of 100,000 files adds to it 64 at a time.
const fewRevisions = 4096

// pruneDue reports whether the index is to be looked through.
func (h *history) pruneDue() bool {
	return len(h.list) <= fewRevisions || len(h.list) > h.pruned+h.pruned/16
}

// prune drops the oldest versions, except those that are needed: of each file, and of all.
func (h *history) prune(needed map[Version]bool) {
	keep := cmp.Or(int(h.keep.Load()), defaultKeep)
	stays, left := map[Version]bool{}, make([]bool, len(h.list))
	versions, blocks := map[string]int{}, 0
	for i := len(h.list) - 1; i >= 0; i-- {
		r := h.list[i]
		k := r.version()
		versions[r.File]++
		blocks += 1 + r.Size/blockSize
		if left[i] = versions[r.File] <= keep && blocks <= historyBlocks || needed[k] || i == len(h.list)-1; left[i] {
			stays[k] = true
		}
	}
	list := h.list[:0:0]
	for i, r := range h.list {
		if left[i] {
			list = append(list, r)
		} else if k := r.version(); k.exists() && !stays[k] {
			_ = os.Remove(h.dir.path(k)) // or else it is in the way of nothing
		}
	}
	h.pruned = len(list)
	if h.list = list; h.index.lines > 2*len(list)+indexSlack/10 {
		h.noteError(h.rewrite())
	}
}

// noteError logs once why versions cannot be kept.
func (h *history) noteError(err error) {
	was := h.said
	if h.said = read.ErrorText(err); h.said != "" && h.said != was {
		h.log.Warn("cannot save the history of service files; last good versions are still saved", "err", err)
	}
}
