package keep

import (
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Recorded returns the names of the files of which stateDir keeps a last good version.
func Recorded(stateDir string) map[string]bool {
	r := newRecords(stateDir, slog.New(slog.DiscardHandler))
	r.Load()
	names := map[string]bool{}
	for _, name := range r.Names() {
		names[name] = true
	}
	return names
}

// LastGood returns the last good version of a file that stateDir keeps.
func LastGood(stateDir, name string) ([]byte, error) {
	r := newRecords(stateDir, slog.New(slog.DiscardHandler))
	r.Load()
	rec, ok := r.Find(name)
	if !ok {
		return nil, fmt.Errorf("no version of %s was accepted: %w", source.Quote(name), fs.ErrNotExist)
	}
	return r.Read(name, rec)
}

// SourceDir returns where the source of a name keeps versions: files in the state directory of the daemon itself, others in one
// of their own there. Empty: nowhere.
func SourceDir(stateDir, name string) string {
	if stateDir == "" || name == read.Source {
		return stateDir
	}
	return filepath.Join(stateDir, name)
}
