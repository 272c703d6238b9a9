package keep

import "log/slog"

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
