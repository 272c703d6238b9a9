package keep

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// add notes what was accepted, once its copies are in the directory of the store.
func (h *history) add(st *Store, jobs []job) {
	if !h.loaded {
		if err := h.load(st.needed()); err != nil {
			h.noteError(err)
			return
		}
	}
	err := os.MkdirAll(h.dir, 0o700)
	var news []Revision
	for _, j := range jobs {
		if err == nil {
			var list []Revision
			list, err = h.take(st, j, len(news))
			news = append(news, list...)
		}
	}
	if err == nil && len(news) > 0 {
		err = h.write(news)
	}
	if h.pruneDue() {
		h.prune(st.needed())
	}
	h.noteError(err)
}

// take keeps the copies of a job, and returns what is to be added for it, after n others.
func (h *history) take(st *Store, j job, n int) (list []Revision, err error) {
	next := 1 + n
	if len(h.list) > 0 {
		next += h.list[len(h.list)-1].Number
	}
	if j.old.Sum == j.Sum { // it was written again
		if h.has(j.name, j.Sum) {
			err = h.keepCopy(st, j.name, j.Sum, j.data)
		}
		return nil, err
	}
	if !j.old.Removed() && !h.has(j.name, j.old.Sum) { // of a version without a history, or dropped
		if h.keepCopy(st, j.name, j.old.Sum, nil) == nil { // else it is gone already
			list = append(list, Revision{Number: next, File: j.name, Sum: hex.EncodeToString(j.old.Sum[:]), At: j.old.At, UID: -1})
			next++
		}
	}
	r := Revision{Number: next, File: j.name, At: j.At, UID: -1, Diff: DiffOf(j.Was, j.Version)}
	if j.Version == nil {
		r.At = time.Now().Round(0)
		return append(list, r), nil
	}
	r.Sum, r.Services, r.Size, r.UID = hex.EncodeToString(j.Sum[:]), len(j.Version.Services), j.Version.Size, j.Version.UID
	if u, err := user.LookupId(strconv.Itoa(r.UID)); err == nil {
		r.Owner = u.Username
	}
	return append(list, r), h.keepCopy(st, j.name, j.Sum, j.data)
}

// keepCopy links a copy of the store, or writes it where links cannot be made.
func (h *history) keepCopy(st *Store, name string, sum [sha256.Size]byte, data []byte) error {
	from := st.CopyPath(name, sum)
	to := filepath.Join(h.dir, copyName(name, sum))
	err := h.link(from, to)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if data == nil {
		if data, _, err = disk.ReadContent(from, read.MaxFileSize); err != nil {
			return err
		}
	}
	return disk.Replace(to, filepath.Join(h.dir, tempName), true, disk.Bytes(data))
}

// link makes to another name of a copy, in the place of what is there: a power failure may have left that cut off.
func (h *history) link(from, to string) error {
	temp := filepath.Join(h.dir, tempName)
	_ = os.Remove(temp) // as a rule there is none
	if err := os.Link(from, temp); err != nil {
		return err
	}
	err := os.Rename(temp, to)
	_ = os.Remove(temp) // which rename leaves where both are one file
	return err
}
