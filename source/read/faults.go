package read

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// Unreadable is the fault of a file whose text is not known, for this reason.
func Unreadable(path string, err error) source.Fault {
	if large, ok := errors.AsType[disk.TooLargeError](err); ok {
		return tooLarge(path, int(large))
	}
	if errors.Is(err, ErrDirAway) {
		return source.Fault{Pos: source.Position{File: path}, Msg: err.Error()}
	}
	if errors.Is(err, ErrMaybeLost) {
		return source.Fault{Pos: source.Position{File: path}, Msg: err.Error(), Hint: "put it back, or reload svcproxy to remove its services"}
	}
	return UnreadableFault(path, err)
}

// UnreadableFault is the fault of a file or directory that cannot be read. Root without
// the right to pass over modes, as the unit has it, may need to be told why.
func UnreadableFault(path string, err error) source.Fault {
	f := source.Fault{Pos: source.Position{File: path}, Msg: "cannot be read: " + Reason(err)}
	switch {
	case errors.Is(err, disk.ErrDirectory):
		f.Hint = "put a file in its place"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0:
		f.Hint = "svcproxy.service reads what the modes of files and directories let root read: chown root, or chmod a+r"
	}
	return f
}

// Reason returns why something failed, without the path.
func Reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return err.Error()
}

// hideWords returns faults of a text that is not to be quoted: where they are, and nothing of what is there.
func hideWords(faults []source.Fault) []source.Fault {
	out := slices.Clone(faults)
	for i, f := range out {
		what := "this cannot be used"
		if f.Warning {
			what = "this is doubtful"
		}
		out[i].Msg = what + "; no word of the text is shown, because a link to the file belongs to another user than the file"
		out[i].Hint = "give the link the owner of the file (chown -h), or put the file itself in its place"
	}
	return out
}

// ErrDirAway says why a file is not read whose directory was replaced, or cannot be listed.
var ErrDirAway = errors.New("the directory is not as it was, and the file cannot be read")

// ErrMaybeLost says why a file is missing that nobody may have removed.
var ErrMaybeLost = errors.New("the file was not there after the host had stopped without shutting down")

// ErrorText returns the text of an error; empty: of none.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// UnusedList is the warning of a file of endpoints that no service refers to.
func UnusedList(path string) source.Fault {
	return source.Fault{
		Pos: source.Position{File: path}, Msg: "no service refers to this file of endpoints",
		Hint: fmt.Sprintf("write endpoints_from = %s in the service that it is for", source.Excerpt(filepath.Base(path))), Warning: true,
	}
}
