package file

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/trust"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// editorFiles matches the names of what editors and package managers leave in a
// directory: it is passed over without a word.
var editorFiles = regexp.MustCompile(`^\.|~$|\.(swp|tmp|bak|orig|rej|secret)$|\.dpkg-[^.]*$|\.rpm[^.]*$`)

// CheckDir returns warnings of what is in a directory beside service files, and of
// who may write it: names that are passed over although one may think that
// they are read, and files that others than root may change. What cannot be
// looked at is for the reader of the files to report, and so is a directory in the place of a known file. shared: service
// files may belong to others than root, who have a share.
func CheckDir(dir string, known map[string]bool, shared bool) []source.Fault {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	d := disk.NewAsker(dir)
	faults := modeFaults(dir, false)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		found, _ := disk.Ask(d, path, func() []source.Fault { return checkEntry(path, e, known, shared) })
		faults = append(faults, found...)
	}
	return faults
}

// checkEntry returns the warnings of one name in the directory.
func checkEntry(path string, e fs.DirEntry, known map[string]bool, shared bool) []source.Fault {
	switch {
	case editorFiles.MatchString(e.Name()):
		return nil
	case isDir(path, e) && (known[e.Name()] || e.Name() == read.SettingsName):
		return nil
	case isDir(path, e):
		return dirWarning(path, "this directory is not read", "service files lie in the configuration directory itself")
	case read.IsServiceFile(e.Name()), e.Name() == read.SettingsName:
		return modeFaults(path, shared && e.Name() != read.SettingsName)
	}
	return dirWarning(path, "this file is not read", "names of service files end in .toml or .json")
}

func modeFaults(path string, owned bool) []source.Fault {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return append(dirWarning(path, writableBy(path, st, owned), "who can write it directs the traffic of this host"),
		dirWarning(path, hiddenFromRoot(path, st), "svcproxy.service, which may not pass over modes, cannot read it: chown root, or chmod a+r")...)
}

// dirWarning returns a warning of path; none where msg is empty.
func dirWarning(path, msg, hint string) []source.Fault {
	if msg == "" {
		return nil
	}
	return []source.Fault{{Pos: source.Position{File: path}, Msg: msg, Hint: hint, Warning: true}}
}

func isDir(path string, e fs.DirEntry) bool {
	info, err := os.Stat(path)
	return e.IsDir() || err == nil && info.IsDir()
}

// writableBy says who besides root and the user of this process may write a path, links followed. owned: its owner may.
func writableBy(path string, st *syscall.Stat_t, owned bool) string {
	switch {
	case trust.ReadOnly(path):
		return ""
	case st.Mode&0o002 != 0:
		return "everybody may write this"
	case st.Mode&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid():
		return "its group may write this, which is not that of root"
	case !owned && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return "its owner may write this, who is not root"
	}
	return ""
}

// hiddenFromRoot says that the mode of a path keeps root from reading it, which this process,
// as root, may do all the same. Where it may not, that is a fault of the file.
func hiddenFromRoot(path string, st *syscall.Stat_t) string {
	bit := uint32(0o004)
	switch {
	case st.Uid == 0:
		bit = 0o400
	case st.Gid == 0:
		bit = 0o040
	}
	if os.Geteuid() != 0 || st.Mode&bit != 0 || unix.Access(path, unix.R_OK) != nil {
		return ""
	}
	return "its mode does not let root read this"
}
