//go:build netns

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

// A way is one of writing a service file.
type way struct {
	name    string
	prepare func(s *site, text string) error // with the first version, before the daemon runs; nil: plain
	write   func(s *site, text string) error
}

// A site is where a way writes.
type site struct {
	env       *env
	dir       string  // the configuration directory
	aside     string  // another one, elsewhere
	title     string  // of the file, whatever its name
	name      string  // of the file
	run       int     // how often it has been written, and the number of the version
	runs      int     // how often it is to be written
	web, more Dual    // addresses of its services
	others    []check // what else is never absent
	services  []Service
}

func (s *site) file() string   { return filepath.Join(s.dir, s.name) }
func (s *site) target() string { return filepath.Join(s.aside, s.name) }

// fresh returns a path aside that no earlier version has had.
func (s *site) fresh() string { return filepath.Join(s.aside, strconv.Itoa(s.run)) }

// writing returns a way to write the file of a site.
func writing(write func(path, text string) error) func(*site, string) error {
	return func(s *site, text string) error { return write(s.file(), text) }
}

// fileWays are those that change one file.
var fileWays = slices.Concat(plainWays, commandWays, editorWays, managerWays, callWays)

// plainWays are those that hardly need a name.
var plainWays = []way{
	{"in place", nil, (*site).plain},
	{"in place, in pieces", nil, writing(writePieces)},
	{"renamed over", nil, writing(renameOver)},
	{"backup dance", nil, writing(backupDance)},
	{"older, renamed over", nil, (*site).older},
	{"older, in place", nil, (*site).olderInPlace},
	{"removed and written again", nil, writing(removeAndWrite)},
	{"symlink swapped", (*site).swapLink, (*site).swapLink},
	{"target of a symlink written", (*site).linkToTarget, func(s *site, text string) error { return write(s.target(), text) }},
	{"target of a symlink replaced", (*site).linkToTarget, func(s *site, text string) error { return renameOver(s.target(), text) }},
}

// directoryWays are those that change the whole directory.
var directoryWays = slices.Concat([]way{
	{"ConfigMap", (*site).firstConfigMap, (*site).configMap},
	{"directory behind a symlink swapped", (*site).swapDirectory, (*site).swapDirectory},
	{"directory removed and made again", nil, (*site).remakeDirectory},
	{"directory renamed away", nil, (*site).replaceDirectory},
	{"directories exchanged", nil, (*site).exchangeDirectory},
	{"directory unpacked and copied over", nil, (*site).unpack},
	{"overflow of the event queue", nil, (*site).overflow},
}, directoryMountWays, gitWays)

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

// writePieces truncates a file and writes it in pieces of any size.
func writePieces(path, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for len(text) > 0 {
		briefly(filepath.Dir(path))
		n := 1 + rand.IntN(len(text))
		if _, err := f.WriteString(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

func renameOver(path, text string) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	return errors.Join(write(temporary, text), os.Rename(temporary, path))
}

// backupDance does as editors do that keep the former version.
func backupDance(path, text string) error {
	err := os.Rename(path, path+"~")
	briefly(filepath.Dir(path))
	return errors.Join(err, write(path, text), os.Remove(path+"~"))
}

func removeAndWrite(path, text string) error {
	err := os.Remove(path)
	briefly(filepath.Dir(path))
	return errors.Join(err, write(path, text))
}

// plain writes the file in place.
func (s *site) plain(text string) error { return write(s.file(), text) }

// older replaces the file by one that was last changed before it.
func (s *site) older(text string) error {
	temporary := filepath.Join(s.dir, "."+s.name)
	old := time.Now().Add(-time.Duration(s.run) * time.Hour)
	return errors.Join(write(temporary, text), os.Chtimes(temporary, old, old), os.Rename(temporary, s.file()))
}

// olderInPlace leaves a file that was changed at the same time as ever, as it says.
func (s *site) olderInPlace(text string) error {
	old := time.Unix(1e9, 0)
	return errors.Join(write(s.file(), text), os.Chtimes(s.file(), old, old))
}

// swapLink makes the file a link to a new one elsewhere.
func (s *site) swapLink(text string) error {
	return errors.Join(write(s.fresh(), text), swapLink(s.fresh(), s.file()))
}

func swapLink(target, link string) error {
	temporary := filepath.Join(filepath.Dir(link), "."+filepath.Base(link))
	return errors.Join(os.Symlink(target, temporary), os.Rename(temporary, link))
}

func (s *site) linkToTarget(text string) error {
	relative, err := filepath.Rel(s.dir, s.target())
	return errors.Join(err, write(s.target(), text), os.Symlink(relative, s.file()))
}

// firstConfigMap turns the directory into a volume as kubelet makes it: files are
// links by way of ..data, which is a link to the present version.
func (s *site) firstConfigMap(text string) error {
	settings := filepath.Join(s.dir, "svcproxy.toml")
	return errors.Join(
		s.configMap(text),
		os.Remove(settings), os.Symlink("..data/svcproxy.toml", settings),
		os.Symlink("..data/"+s.name, s.file()))
}

// configMap swaps ..data to a new version, and removes the one before.
func (s *site) configMap(text string) error {
	data := filepath.Join(s.dir, "..data")
	old, err := os.Readlink(data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	version := fmt.Sprintf("..2026_%d", s.run)
	if err := s.fill(filepath.Join(s.dir, version), text); err != nil {
		return err
	}
	if err := swapLink(version, data); err != nil || old == "" {
		return err
	}
	return os.RemoveAll(filepath.Join(s.dir, old))
}

// fill makes a directory with all files.
func (s *site) fill(dir, text string) error {
	steady, err := s.env.steadyText()
	return errors.Join(err, os.Mkdir(dir, 0o755),
		write(filepath.Join(dir, "svcproxy.toml"), s.env.settings), write(filepath.Join(dir, steadyName), steady), write(filepath.Join(dir, s.name), text))
}

// swapDirectory makes the directory a link to a new one elsewhere.
func (s *site) swapDirectory(text string) error {
	if err := s.fill(s.fresh(), text); err != nil {
		return err
	}
	if s.run == 0 {
		return errors.Join(os.RemoveAll(s.dir), os.Symlink(s.fresh(), s.dir))
	}
	return swapLink(s.fresh(), s.dir)
}

func (s *site) remakeDirectory(text string) error {
	err := os.RemoveAll(s.dir)
	briefly(s.dir)
	return errors.Join(err, s.fill(s.dir, text))
}

// replaceDirectory puts another directory in the place of the present one.
func (s *site) replaceDirectory(text string) error {
	err := errors.Join(s.fill(s.fresh(), text), os.Rename(s.dir, s.fresh()+".old"))
	briefly(s.dir)
	return errors.Join(err, os.Rename(s.fresh(), s.dir))
}

func (s *site) exchangeDirectory(text string) error {
	return errors.Join(
		s.fill(s.fresh(), text),
		unix.Renameat2(unix.AT_FDCWD, s.fresh(), unix.AT_FDCWD, s.dir, unix.RENAME_EXCHANGE))
}

// unpack copies a whole directory over the present one, in one of several ways.
func (s *site) unpack(text string) error {
	scripts := []string{
		"cp -a $aside/$n/. $dir",
		"tar -C $aside/$n -cf a.tar .; tar -C $dir -xf a.tar",
		"tar -C $aside/$n -cf - . | tar -C $dir -xf - --overwrite",
		"for f in $aside/$n/*; do install -m 644 $f $dir; done",
	}
	return errors.Join(s.fill(s.fresh(), text), shell(scripts[s.run%len(scripts)])(s, text))
}

// overflow fills the daemon's queue of events while it cannot read them, so that
// the kernel drops those of the file.
func (s *site) overflow(text string) error {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		return err
	}
	events, err := strconv.Atoi(strings.TrimSpace(string(limit)))
	if err != nil {
		return fmt.Errorf("reading how many events are queued: %w", err)
	}
	if err := s.env.daemon.Freeze(); err != nil {
		return err
	}
	err = errors.Join(flood(s.dir, events), s.plain(text))
	before := strings.Count(s.env.daemon.LogTail(1<<20), overflowed)
	if err := errors.Join(err, s.env.daemon.Signal(unix.SIGCONT)); err != nil {
		return err
	}
	return pace.Poll(expectPatience, func() error {
		if strings.Count(s.env.daemon.LogTail(1<<20), overflowed) == before {
			return errors.New("the daemon does not say that events were lost")
		}
		return nil
	})
}

// overflowed is what the log says of lost events.
const overflowed = "fsnotify: queue or buffer overflow"

// flood causes so many events in a directory. Equal ones in a row would count as one.
func flood(dir string, events int) error {
	a, b := filepath.Join(dir, ".a"), filepath.Join(dir, ".b")
	if err := write(a, ""); err != nil {
		return err
	}
	for range events/2 + 1 { // a rename makes two
		if err := os.Rename(a, b); err != nil {
			return err
		}
		a, b = b, a
	}
	return os.Remove(a)
}
