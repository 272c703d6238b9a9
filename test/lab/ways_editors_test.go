//go:build netns

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What programs do that tests cannot count on, call by call.

// editorWays are those of editors.
var editorWays = []way{
	{"vim", nil, writing(vim)},
	{"vim backupcopy=yes", nil, writing(backupCopy)},
	{"vim nowritebackup", nil, writing(func(path, text string) error { return swapped(path, func() error { return synced(path, text) }) })},
	{"vim of a symlink", (*site).linkToTarget, func(s *site, text string) error { return vim(s.target(), text) }},
	{"emacs", nil, writing(func(path, text string) error { return emacs(path, func() error { return keepThenCreate(path, text) }) })},
	{"emacs backup-by-copying", nil, writing(func(path, text string) error { return emacs(path, func() error { return copyThenWrite(path, text) }) })},
	{"emacs file-precious-flag", nil, writing(func(path, text string) error {
		return emacs(path, func() error { return beside(path, "tmpXy12Za", text) })
	})},
	{"nano", nil, writing(func(path, text string) error { return swapped(path, func() error { return write(path, text) }) })},
	{"nano -B", nil, writing(copyThenWrite)},
	{"gedit", nil, writing(gedit)},
	{"GLib", nil, writing(func(path, text string) error { return beside(path, filepath.Base(path)+".A1B2C3", text) })},
	{"KDE", nil, writing(saveFile)},
	{"kate with a backup", nil, writing(func(path, text string) error { return errors.Join(copyFile(path, path+"~"), saveFile(path, text)) })},
	{"VS Code", nil, writing(truncateThenWrite)},
	{"VS Code, atomic", nil, writing(func(path, text string) error { return beside(path, filepath.Base(path)+".vsctmp", text) })},
	{"JetBrains", nil, writing(jetBrains)},
	{"Sublime Text", nil, writing(func(path, text string) error { return beside(path, ".subl1f3a.tmp", text) })},
	{"mcedit", nil, writing(func(path, text string) error { return beside(path, "cooledit.4Zq1Xb", text) })},
	{"helix", nil, writing(helix)},
	{"kakoune", nil, writing(func(path, text string) error { return beside(path, "."+filepath.Base(path)+".kak.q3X7vB", text) })},
	{"ed", nil, writing(synced)},
}

// managerWays are those of programs that write files for others.
var managerWays = []way{
	{"dpkg", nil, writing(dpkg)},
	{"rpm", nil, writing(func(path, text string) error { return beside(path, filepath.Base(path)+";6541f0a2", text) })},
	{"ucf", nil, writing(func(path, text string) error {
		return errors.Join(write(path+".dpkg-new", text), copyFile(path, path+".ucf-old"), os.Rename(path+".dpkg-new", path))
	})},
	{"ansible", nil, writing(func(path, text string) error { return beside(path, ".ansible_tmpq1w2e3"+filepath.Base(path), text) })},
	{"ansible unsafe_writes", nil, writing(inBlocks)},
	{"puppet", nil, writing(func(path, text string) error { return beside(path, filepath.Base(path)+"20261122-4711-1x2y3z", text) })},
	{"chef", nil, writing(func(path, text string) error {
		return errors.Join(copyFile(path, path+".bak"), beside(path, ".chef-web20261122-4711-1x2y3z.json", text))
	})},
	{"salt", nil, writing(func(path, text string) error { return beside(path, "__salt.tmp.q1w2e3", text) })},
	{"consul-template", nil, writing(func(path, text string) error {
		return errors.Join(copyFile(path, path+".bak"), beside(path, "2958462817", text))
	})},
	{"confd", nil, writing(func(path, text string) error { return beside(path, "."+filepath.Base(path)+"2958462817", text) })},
	{"cloud-init", nil, writing(func(path, text string) error { return beside(path, "tmpq1w2e3r4", text) })},
	{"systemd", nil, writing(func(path, text string) error { return beside(path, ".#"+filepath.Base(path)+"f00ba4deadbeef", text) })},
	{"docker cp", nil, writing(func(path, text string) error { return errors.Join(os.Remove(path), exclusive(path, text), age(path)) })},
	{"certbot", (*site).swapLink, (*site).relink},
	{"stow", (*site).chain, (*site).chain},
	{"rsync", nil, writing(func(path, text string) error { return besideOlder(path, "."+filepath.Base(path)+".q1W2e3", text) })},
	{"rsync --inplace", nil, writing(inPlaceThenCut)},
	{"rsync --delay-updates", nil, writing(func(path, text string) error {
		delayed := filepath.Join(filepath.Dir(path), ".~tmp~"+filepath.Base(path))
		return errors.Join(os.Mkdir(delayed, 0o700), besideOlder(path, filepath.Base(delayed)+"/"+filepath.Base(path), text), os.Remove(delayed))
	})},
	{"unison", nil, writing(func(path, text string) error {
		return besideOlder(path, ".unison."+filepath.Base(path)+".f00.unison.tmp", text)
	})},
	{"syncthing", nil, writing(func(path, text string) error {
		return besideOlder(path, ".syncthing."+filepath.Base(path)+".tmp", text)
	})},
	{"rclone", nil, writing(func(path, text string) error { return besideOlder(path, filepath.Base(path)+".f00ba4.partial", text) })},
	{"scp", nil, writing(inPlaceThenCut)},
	{"write-file-atomic", nil, writing(func(path, text string) error { return beside(path, filepath.Base(path)+".3141592653", text) })},
	{"atomicwrites", nil, writing(func(path, text string) error {
		dir := filepath.Join(filepath.Dir(path), ".atomicwrite"+filepath.Base(path))
		return errors.Join(os.Mkdir(dir, 0o700), beside(path, filepath.Base(dir)+"/tmpfile.tmp", text), os.Remove(dir))
	})},
}

// synced writes a file in place, and has it on the disk.
func synced(path, text string) error {
	return change(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, func(f *os.File) error {
		_, err := f.WriteString(text)
		return errors.Join(err, f.Sync())
	})
}

// exclusive writes a file that does not exist.
func exclusive(path, text string) error {
	return change(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(f *os.File) error {
		_, err := f.WriteString(text)
		return errors.Join(err, f.Sync())
	})
}

// change calls do with an open file, and closes it.
func change(path string, flags int, do func(f *os.File) error) error {
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// beside writes a file by way of another one in its directory, which is renamed.
func beside(path, temporary, text string) error {
	temporary = filepath.Join(filepath.Dir(path), temporary)
	return errors.Join(exclusive(temporary, text), os.Chmod(temporary, 0o644), os.Rename(temporary, path))
}

func besideOlder(path, temporary, text string) error {
	temporary = filepath.Join(filepath.Dir(path), temporary)
	return errors.Join(exclusive(temporary, text), age(temporary), os.Rename(temporary, path))
}

// age has a file as old as all others that were aged.
func age(path string) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}, 0)
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, text, 0o644))
}

// swapped has a swap file beside a file while it is edited.
func swapped(path string, edit func() error) error {
	swap := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".swp")
	return errors.Join(write(swap, "b0VIM 9.0"), edit(), os.Remove(swap))
}

// vim with its defaults: it tries whether it can make files there, keeps the former
// version under another name, and writes a new file.
func vim(path, text string) error {
	probe := filepath.Join(filepath.Dir(path), "4913"+filepath.Base(path))
	return swapped(path, func() error {
		return errors.Join(
			exclusive(probe, ""), os.Remove(probe),
			keepThenCreate(path, text), os.Chmod(path, 0o644), os.Remove(path+"~"))
	})
}

func backupCopy(path, text string) error {
	return swapped(path, func() error { return errors.Join(copyThenWrite(path, text), os.Remove(path+"~")) })
}

func keepThenCreate(path, text string) error {
	return errors.Join(os.Rename(path, path+"~"), exclusive(path, text))
}

func copyThenWrite(path, text string) error {
	return errors.Join(copyFile(path, path+"~"), synced(path, text))
}

// emacs has a lock beside a file while it is edited: a link that leads nowhere.
func emacs(path string, save func() error) error {
	lock := filepath.Join(filepath.Dir(path), ".#"+filepath.Base(path))
	return errors.Join(os.Symlink("root@host.4711:1700000000", lock), save(), os.Remove(lock))
}

// gedit has the former version as a hard link.
func gedit(path, text string) error {
	if err := os.Remove(path + "~"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Link(path, path+"~"), beside(path, ".goutputstream-"+filepath.Base(path), text))
}

// saveFile does as QSaveFile: a file without a name gets one, and takes the place.
func saveFile(path, text string) error {
	temporary := path + ".kXsLmQ"
	return errors.Join(linked(path, temporary, text), os.Rename(temporary, path))
}

// linked writes a file without a name in the directory of path, and gives it one.
func linked(path, name, text string) error {
	err := change(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR, func(f *os.File) error {
		_, err := f.WriteString(text)
		open := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		return errors.Join(err, unix.Linkat(unix.AT_FDCWD, open, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
	})
	if errors.Is(err, unix.EOPNOTSUPP) { // on this file system each file has a name
		return exclusive(name, text)
	}
	return err
}

func truncateThenWrite(path, text string) error {
	err := os.Truncate(path, 0)
	return errors.Join(err, change(path, unix.O_RDWR, func(f *os.File) error {
		_, err := f.WriteString(text)
		return errors.Join(err, unix.Fdatasync(int(f.Fd())))
	}))
}

func jetBrains(path, text string) error {
	fresh, old := path+"___jb_tmp___", path+"___jb_old___"
	return errors.Join(synced(fresh, text), os.Rename(path, old), os.Rename(fresh, path), os.Remove(old))
}

// helix keeps the former version until the new one is written.
func helix(path, text string) error {
	old := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"q1W2e3.bck")
	return errors.Join(os.Rename(path, old), synced(path, text), os.Remove(old))
}

// dpkg installs a configuration file.
func dpkg(path, text string) error {
	fresh, old := path+".dpkg-new", path+".dpkg-tmp"
	return errors.Join(synced(fresh, text), os.Link(path, old), os.Rename(fresh, path), os.Remove(old))
}

// inBlocks writes a file in place, in blocks.
func inBlocks(path, text string) error {
	return change(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, func(f *os.File) error { return blocks(f, text) })
}

func blocks(f *os.File, text string) error {
	for i := 0; i < len(text); i += 100 {
		if _, err := f.WriteString(text[i:min(i+100, len(text))]); err != nil {
			return err
		}
	}
	return nil
}

// inPlaceThenCut writes over what is there, and cuts off what is left of it.
func inPlaceThenCut(path, text string) error {
	return change(path, unix.O_RDWR|unix.O_CREAT, func(f *os.File) error {
		return errors.Join(blocks(f, text), f.Truncate(int64(len(text))))
	})
}

// relink removes the link to the former version before it makes one to the new.
func (s *site) relink(text string) error {
	return errors.Join(write(s.fresh(), text), os.Remove(s.file()), os.Symlink(s.fresh(), s.file()))
}

// chain makes the file a link to a link into a directory that a link leads to.
func (s *site) chain(text string) error {
	current, release := filepath.Join(s.aside, "current"), s.fresh()
	err := errors.Join(os.Mkdir(release, 0o755), write(filepath.Join(release, s.name), text), swapLink(release, current))
	if s.run > 0 || err != nil {
		return err
	}
	enabled := filepath.Join(s.aside, "enabled")
	return errors.Join(os.Symlink("current/"+s.name, enabled), os.Symlink(enabled, s.file()))
}
