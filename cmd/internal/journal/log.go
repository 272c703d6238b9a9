package journal

import (
	"io"
	"log/slog"

	"svcproxy.dev/svcproxy/configs"
)

// NewLog returns the log that settings ask for, and its level. Both formats quote what could
// pass for another line.
func NewLog(w io.Writer, s configs.Log) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	SetLevel(level, s.Level)
	o := &slog.HandlerOptions{Level: level}
	return slog.New(NewHandler(w, func(w io.Writer) slog.Handler {
		if s.Format == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	})), level
}

// SetLevel takes what configs has checked; anything else leaves the level alone.
func SetLevel(level *slog.LevelVar, name string) {
	_ = level.UnmarshalText([]byte(name))
}
