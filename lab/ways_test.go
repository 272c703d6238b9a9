//go:build netns

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A way is one of writing a service file, web.json.
type way struct {
	name    string
	prepare func(s *site, text string) error // with the first version, before the daemon runs
	write   func(s *site, text string) error
}

// A site is where a way writes.
type site struct {
	daemon   *Daemon
	dir      string // the configuration directory
	aside    string // another one beside it
	settings string // the text of svcproxy.toml
	run      int    // how often it has been written, and the number of the version
}

func (s *site) file() string   { return s.dir + "/web.json" }
func (s *site) target() string { return s.aside + "/web.json" }

var ways = []way{
	{"in place", (*site).plain, (*site).plain},
	{"in place, in pieces", (*site).plain, func(s *site, text string) error { return writePieces(s.file(), text) }},
	{"renamed over", (*site).plain, func(s *site, text string) error { return renameOver(s.file(), text) }},
	{"backup dance", (*site).plain, func(s *site, text string) error { return backupDance(s.file(), text) }},
	{"older, renamed over", (*site).plain, (*site).older},
	{"older, in place", (*site).plain, (*site).olderInPlace},
	{"removed and written again", (*site).plain, func(s *site, text string) error { return removeAndWrite(s.file(), text) }},
	{"symlink swapped", (*site).swapLink, (*site).swapLink},
	{"target of a symlink written", (*site).linkToTarget, func(s *site, text string) error { return write(s.target(), text) }},
	{"target of a symlink replaced", (*site).linkToTarget, func(s *site, text string) error { return renameOver(s.target(), text) }},
	{"ConfigMap", (*site).firstConfigMap, (*site).configMap},
	{"directory behind a symlink swapped", (*site).swapDirectory, (*site).swapDirectory},
	{"directory removed and made again", (*site).plain, (*site).remakeDirectory},
	{"directory renamed away", (*site).plain, (*site).replaceDirectory},
	{"overflow of the event queue", (*site).plain, (*site).overflow},
}

// longestPause of a writer leaves the rest of quietTime to a busy machine.
var longestPause = soak(60*time.Millisecond, 90*time.Millisecond)

func briefly() { time.Sleep(rand.N(longestPause)) }

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

// writePieces truncates a file and writes it in pieces of any size.
func writePieces(path, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for len(text) > 0 {
		briefly()
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
	briefly()
	return errors.Join(err, write(path, text), os.Remove(path+"~"))
}

func removeAndWrite(path, text string) error {
	err := os.Remove(path)
	briefly()
	return errors.Join(err, write(path, text))
}

// plain writes the file in place.
func (s *site) plain(text string) error { return write(s.file(), text) }

// older replaces the file by one that was last changed before it.
func (s *site) older(text string) error {
	temporary := filepath.Join(s.dir, ".new")
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
	target := filepath.Join(s.aside, strconv.Itoa(s.run))
	return errors.Join(write(target, text), swapLink(target, s.file()))
}

func swapLink(target, link string) error {
	temporary := filepath.Join(filepath.Dir(link), ".link")
	return errors.Join(os.Symlink(target, temporary), os.Rename(temporary, link))
}

func (s *site) linkToTarget(text string) error {
	return errors.Join(write(s.target(), text), os.Symlink("../aside/web.json", s.file()))
}

// firstConfigMap turns the directory into a volume as kubelet makes it: files are
// links by way of ..data, which is a link to the present version.
func (s *site) firstConfigMap(text string) error {
	settings := filepath.Join(s.dir, "svcproxy.toml")
	return errors.Join(
		s.configMap(text),
		os.Remove(settings), os.Symlink("..data/svcproxy.toml", settings),
		os.Symlink("..data/web.json", s.file()))
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
	return errors.Join(
		os.Mkdir(dir, 0o755), write(filepath.Join(dir, "svcproxy.toml"), s.settings), write(filepath.Join(dir, "web.json"), text))
}

// swapDirectory makes the directory a link to a new one elsewhere.
func (s *site) swapDirectory(text string) error {
	target := filepath.Join(s.aside, strconv.Itoa(s.run))
	if err := s.fill(target, text); err != nil {
		return err
	}
	if s.run == 0 {
		return errors.Join(os.RemoveAll(s.dir), os.Symlink(target, s.dir))
	}
	return swapLink(target, s.dir)
}

func (s *site) remakeDirectory(text string) error {
	err := os.RemoveAll(s.dir)
	briefly()
	return errors.Join(err, s.fill(s.dir, text))
}

// replaceDirectory puts another directory in the place of the present one.
func (s *site) replaceDirectory(text string) error {
	fresh := filepath.Join(s.aside, strconv.Itoa(s.run))
	err := errors.Join(s.fill(fresh, text), os.Rename(s.dir, fresh+".old"))
	briefly()
	return errors.Join(err, os.Rename(fresh, s.dir))
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
	if err := s.daemon.Freeze(); err != nil {
		return err
	}
	err = errors.Join(flood(s.dir, events), s.plain(text))
	before := strings.Count(s.daemon.LogTail(1<<20), overflowed)
	if err := errors.Join(err, s.daemon.Signal(unix.SIGCONT)); err != nil {
		return err
	}
	return Poll(expectPatience, func() error {
		if strings.Count(s.daemon.LogTail(1<<20), overflowed) == before {
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
