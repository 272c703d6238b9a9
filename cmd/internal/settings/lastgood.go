package settings

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

// lastGood is where the last svcproxy.toml is kept that could be used.
func (w *Watcher) lastGood() string { return filepath.Join(w.StateDir, read.SettingsName) }

// unknown is the text of settings that are not those of the present file: whatever
// is found there is read.
var unknown = []byte{0}

// contents returns the text of svcproxy.toml, nil where there is none. An empty one, as there is for a moment while a
// file is written, and what is no file, as a pipe that would block, are errors. That there is none is not to be
// concluded from a directory that is gone, or is not the one that it was.
func (w *Watcher) contents() ([]byte, error) {
	f, info, err := disk.Open(w.path())
	switch {
	case err == nil:
		defer f.Close()
		if info.Size() == 0 {
			return nil, errNoText
		}
		return io.ReadAll(io.LimitReader(f, configs.MaxSize+1)) // one byte too many is refused
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := file.CheckListing(w.ConfigDir, w.StateDir); err != nil {
		return nil, awayError{err}
	}
	if w.text == nil {
		return nil, nil
	}
	_, err = os.Stat(w.ConfigDir)
	return nil, err
}

// An awayError says why the directory of svcproxy.toml is not the one that it was.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// Open reads the settings to begin with.
func Open(c Config) (*Watcher, error) {
	w := &Watcher{Config: c}
	s, faults, err := w.first()
	if err != nil {
		return nil, err
	}
	w.Fixed, w.inUse, w.faults = s, s, faults
	return w, nil
}

// Begin logs what is wrong with svcproxy.toml, and keeps it if it is used. The log has a level that settings change.
func (w *Watcher) Begin(ctx context.Context, log *slog.Logger, level *slog.LevelVar) {
	w.log, w.level = log, level
	for _, f := range w.faults {
		w.log.Warn(f.String())
	}
	if w.stale {
		w.log.Error("svcproxy.toml has faults; using the last good version", "copy", w.lastGood())
		w.text = unknown
	} else {
		w.save(ctx)
	}
}

// first reads svcproxy.toml. One that is broken, or cannot be read, is not
// used: the last good one is, where there is one.
func (w *Watcher) first() (s configs.Settings, faults []source.Fault, err error) {
	info, none := os.Stat(w.lastGood()) // nil: there is a last good copy
	if none == nil && info.Size() == 0 {
		none = errNoText // it was cut off: none is kept of an empty file
	}
	w.text, err = disk.Answer(w.path(), (&Watcher{Config: w.Config}).contents) // of a disk that hangs, it outlives this call
	if err != nil && (none == nil || !errors.Is(err, errNoText)) {             // an empty one is good, where it replaces nothing
		faults = []source.Fault{read.UnreadableFault(w.path(), err)}
	} else if s, faults, err = w.Load(w.path()); err != nil {
		return s, nil, err
	}
	if source.FirstError(faults) == nil {
		return s, faults, nil
	}
	if none != nil {
		return w.withoutFile(err, faults)
	}
	s, old, err := w.Load(w.lastGood())
	if err != nil || source.AnyError(old) {
		return s, nil, Error(faults)
	}
	w.stale = true
	return s, faults, nil
}

// withoutFile returns the settings that there are where none was ever in use,
// and why there is no text now. A directory that is gone had none when it was last seen.
func (w *Watcher) withoutFile(err error, faults []source.Fault) (configs.Settings, []source.Fault, error) {
	var away awayError
	if !errors.As(err, &away) {
		return configs.Default(), nil, Error(faults)
	}
	s, more, err := w.Load(w.path()) // flags count
	if err != nil || source.AnyError(more) {
		return s, nil, Error(append(faults, more...))
	}
	for i := range faults {
		faults[i].Warning = true
	}
	return s, faults, nil
}

// save keeps the text that is in use, for the next start.
func (w *Watcher) save(ctx context.Context) {
	now, err := w.contents()
	switch {
	case err != nil || !bytes.Equal(now, w.text) || ctx.Err() != nil:
		err = nil // it has changed again, or the next daemon may have the directory
	case w.text == nil:
		err = os.Remove(w.lastGood())
	default:
		if old, unread := os.ReadFile(w.lastGood()); unread != nil || !bytes.Equal(old, w.text) {
			err = disk.Replace(w.lastGood(), w.lastGood()+".new", true, disk.Bytes(w.text))
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	w.mu.Lock()
	w.unkept = err
	w.mu.Unlock()
	if err != nil {
		w.log.Error("cannot save the last good svcproxy.toml; it will not survive a restart", "err", err)
	}
}

// KeepError returns why the settings in use are not kept; empty: they are.
func (w *Watcher) KeepError() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unkept == nil {
		return ""
	}
	return w.unkept.Error()
}
