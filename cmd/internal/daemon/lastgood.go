package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"svcproxy/configs"
	"svcproxy/source"
	"svcproxy/source/disk"
	"svcproxy/source/file"
)

// lastGood is where the last svcproxy.toml is kept that could be used.
func (d *daemon) lastGood() string { return filepath.Join(d.StateDir, file.SettingsName) }

// unknown is the text of settings that are not those of the present file: whatever
// is found there is read.
var unknown = []byte{0}

// contents returns the text of svcproxy.toml, nil where there is none. That there is
// none is not to be concluded from a directory that is gone.
func (d *daemon) contents() ([]byte, error) {
	text, err := contents(d.path())
	if text != nil || err != nil {
		return text, err
	}
	if err := file.Away(d.ConfigDir, d.StateDir); err != nil {
		return nil, awayError{err}
	}
	if _, err := os.Stat(d.ConfigDir); err != nil && d.text != nil {
		return nil, err
	}
	return nil, nil
}

// An awayError says why the directory of svcproxy.toml is not the one that it was.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// firstSettings reads svcproxy.toml. One that is broken, or cannot be read, is not
// used: the last good one is, where there is one.
func (d *daemon) firstSettings() (s configs.Settings, faults []source.Fault, err error) {
	_, none := os.Stat(d.lastGood())
	d.text, err = d.contents()
	if err != nil && (none == nil || !errors.Is(err, errNoText)) { // an empty one is good, where it replaces nothing
		faults = []source.Fault{d.noText(err)}
	} else if s, faults, err = d.Load(d.path()); err != nil {
		return s, nil, err
	}
	if !fatal(faults) {
		return s, faults, nil
	}
	if none != nil {
		return d.settingsWithoutFile(err, faults)
	}
	s, old, err := d.Load(d.lastGood())
	if err != nil || fatal(old) {
		return s, nil, SettingsError(faults)
	}
	d.stale = true
	return s, faults, nil
}

// settingsWithoutFile returns the settings that there are where none was ever in use,
// and why there is no text now. A directory that is gone had none when it was last seen.
func (d *daemon) settingsWithoutFile(err error, faults []source.Fault) (configs.Settings, []source.Fault, error) {
	var away awayError
	if !errors.As(err, &away) {
		return configs.Default(), nil, SettingsError(faults)
	}
	s, more, err := d.Load(d.path()) // flags count
	if err != nil || fatal(more) {
		return s, nil, SettingsError(append(faults, more...))
	}
	for i := range faults {
		faults[i].Warning = true
	}
	return s, faults, nil
}

// noText is the fault of a svcproxy.toml of which nobody knows what it says.
func (d *daemon) noText(err error) source.Fault {
	return file.Unreadable(d.path(), err)
}

// keep keeps the text that is in use, for the next start.
func (d *daemon) keep(ctx context.Context) {
	err := d.tryKeep(ctx)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Error("the last good svcproxy.toml cannot be kept; a restart will not know it", "err", err)
	}
}

func (d *daemon) tryKeep(ctx context.Context) error {
	if now, err := d.contents(); err != nil || !bytes.Equal(now, d.text) {
		return nil // it has changed again
	}
	if ctx.Err() != nil {
		return nil // the next daemon may have the directory
	}
	if d.text == nil {
		return os.Remove(d.lastGood())
	}
	if old, err := os.ReadFile(d.lastGood()); err == nil && bytes.Equal(old, d.text) {
		return nil
	}
	return disk.Replace(d.lastGood(), d.lastGood()+".new", true, disk.Bytes(d.text))
}
