package keep

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

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
	dir  string
	log  *slog.Logger
	keep atomic.Int64 // of each file; 0: defaultKeep

	// Of the goroutine of the store.
	said   string // why the last write failed; empty: it did not
	loaded bool
	list   []Revision // by number
	lines  int        // of the index
	pruned int        // how many prune left, the last time
	whole  bool       // the index on the disk is as we know it, and can be added to
	news   bool       // it has grown, and the disk was not asked since
}

func (h *history) index() string { return filepath.Join(h.dir, "index") }

// load reads the index. One that is there and cannot be read stays: it is tried again with the next change.
func (h *history) load(needed map[Version]bool) error {
	data, err := os.ReadFile(h.index())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the versions that are kept: %w", err)
	}
	if h.loaded = true; err == nil {
		h.list, h.whole = parseRevisions(data)
		h.lines = len(h.list)
	}
	if h.whole { // else nobody knows what it named
		h.removeOrphans(needed)
	}
	return nil
}

// removeOrphans removes copies that the index does not name and nothing needs: a process was
// killed between the two.
func (h *history) removeOrphans(needed map[Version]bool) {
	named := copyNames(needed)
	for _, r := range h.list {
		if k := r.version(); k.exists() {
			named[copyName(k.Name, k.Sum)] = true
		}
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return // nothing is known
	}
	for _, e := range entries {
		if isCopy.MatchString(e.Name()) && !named[e.Name()] {
			_ = os.Remove(filepath.Join(h.dir, e.Name()))
		}
	}
}

func (h *history) has(name string, sum [sha256.Size]byte) bool {
	text := hex.EncodeToString(sum[:])
	return slices.ContainsFunc(h.list, func(r Revision) bool { return r.File == name && r.Sum == text })
}

// write adds revisions to the index, of which the disk is asked later.
func (h *history) write(news []Revision) error {
	if !h.whole {
		if err := h.rewrite(); err != nil {
			return err
		}
	}
	var lines strings.Builder
	for _, r := range news {
		lines.WriteString(r.encode())
	}
	if err := addLines(h.index(), lines.String()); err != nil {
		h.whole = false // there may be half a line
		return err
	}
	h.list, h.lines, h.news = append(h.list, news...), h.lines+len(news), true
	return nil
}

// takeNews reports whether the index has grown since it was last called.
func (h *history) takeNews() bool {
	news := h.news
	h.news = false
	return news
}

// noteSynced notes whether the disk has the index.
func (h *history) noteSynced(err error) {
	if err != nil {
		h.whole = false // nobody knows what it has
		h.noteError(err)
	}
}

// rewrite writes the index again.
func (h *history) rewrite() error {
	var b strings.Builder
	for _, r := range h.list {
		b.WriteString(r.encode())
	}
	err := disk.Replace(h.index(), filepath.Join(h.dir, tempName), true, disk.Bytes([]byte(b.String())))
	if err != nil {
		return err
	}
	h.lines, h.whole = len(h.list), true
	return nil
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
	keep := int(h.keep.Load())
	if keep == 0 {
		keep = defaultKeep
	}
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
			_ = os.Remove(filepath.Join(h.dir, copyName(k.Name, k.Sum))) // or else it is in the way of nothing
		}
	}
	h.pruned = len(list)
	if h.list = list; h.lines > 2*len(list)+indexSlack/10 {
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
