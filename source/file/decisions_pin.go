package file

import (
	"crypto/sha256"
	"log/slog"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A pin says that one version of a file is not used when it is found. It goes
// when another one counts.
type pin struct {
	state source.FileState  // source.Held or source.RolledBack
	found [sha256.Size]byte // the version; zero: that there is no file
	use   [sha256.Size]byte // RolledBack: what is used instead; zero: nothing
	since time.Time
	why   string // for people
}

// A hold says why the present version of a file is not used.
type hold struct {
	pin
	services []source.Key // that it would remove
	told     bool         // it is in the log
}

// faults returns what a status says of h.
func (h *hold) faults(path string) []source.Fault {
	if h == nil {
		return nil
	}
	f := source.Fault{Pos: source.Position{File: path}, Msg: "this change is held: " + h.why, Hint: "svcproxy confirm lets it through"}
	if h.state == source.RolledBack {
		f.Msg, f.Hint, f.Warning = h.why, "it is used until the file changes", true
	}
	return []source.Fault{f}
}

// maxHeldLines is how many files that one step holds have a line of the log each.
const maxHeldLines = 10

// log tells once.
func (h *hold) log(log *slog.Logger, path string) {
	if h.told {
		return
	}
	h.told = true
	if h.state == source.RolledBack {
		log.Info("service file rolled back", "file", path, "why", h.why)
		return
	}
	log.Warn("a change of a service file is held: its services stay as last accepted, until svcproxy confirm", "file", path, "why", h.why)
}
