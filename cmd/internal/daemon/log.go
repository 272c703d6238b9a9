package daemon

import (
	"io"
	"log/slog"

	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/configs"
)

// newLog returns the log that settings ask for. Both formats quote what could
// pass for another line.
func newLog(w io.Writer, s configs.Log) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	setLevel(level, s.Level)
	o := &slog.HandlerOptions{Level: level}
	return slog.New(journal.NewHandler(w, func(w io.Writer) slog.Handler {
		if s.Format == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	})), level
}

// setLevel takes what configs has checked; anything else leaves the level alone.
func setLevel(level *slog.LevelVar, name string) {
	_ = level.UnmarshalText([]byte(name))
}
