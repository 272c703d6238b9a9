package keep

import "log/slog"

// Recorded returns the names of the files of which stateDir keeps a last good version.
func Recorded(stateDir string) map[string]bool {
	st := New(stateDir, slog.New(slog.DiscardHandler))
	st.Load()
	names := map[string]bool{}
	for _, name := range st.Names() {
		names[name] = true
	}
	return names
}
