// Package journal gives lines of a log the priority that systemd's journal shows and
// filters them by, sd-daemon(3), and never blocks the caller on a slow reader: the Queue
// between them forgets what does not fit.
package journal

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/configs"
)

// Connected reports whether what is written to w goes to the journal: it is the file that
// systemd names in JOURNAL_STREAM, as device and inode, or a Queue to that.
func Connected(w io.Writer) bool {
	if q, ok := w.(*Queue); ok {
		w = q.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// NewHandler returns what newHandler makes for w. Where w is the journal, each line begins
// with its priority; newHandler must write each record at once. A Queue tells of lines that
// it dropped in the same way.
func NewHandler(w io.Writer, newHandler func(io.Writer) slog.Handler) slog.Handler {
	handlerOf := newHandler
	if Connected(w) {
		handlerOf = func(w io.Writer) slog.Handler { return prioritized(w, newHandler) }
	}
	if q, ok := w.(*Queue); ok {
		q.reportDroppedBy(handlerOf)
	}
	return handlerOf(w)
}

func prioritized(w io.Writer, newHandler func(io.Writer) slog.Handler) slog.Handler {
	out := &output{w: w}
	return handler{newHandler(out), out}
}

// Failure returns an error's text as it is written to w, which may be the journal.
func Failure(w io.Writer, err error) string {
	if !Connected(w) {
		return err.Error()
	}
	mark := prefix(slog.LevelError)
	return mark + strings.ReplaceAll(err.Error(), "\n", "\n"+mark)
}

// prefix returns a level as one of syslog(3), which has more of them.
func prefix(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "<3>"
	case l >= slog.LevelWarn:
		return "<4>"
	case l >= slog.LevelInfo:
		return "<6>"
	}
	return "<7>"
}

// A handler tells its output the level of what comes next.
type handler struct {
	slog.Handler
	out *output
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.prefix = prefix(r.Level)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.out}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.out}
}

// output writes a record with its prefix, in one write.
type output struct {
	w io.Writer

	mu     sync.Mutex // held by a handler while it writes
	prefix string     // of the next record
	line   []byte
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.line = append(append(o.line[:0], o.prefix...), p...)
	n, err := o.w.Write(o.line)
	return max(0, n-len(o.prefix)), err
}

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
