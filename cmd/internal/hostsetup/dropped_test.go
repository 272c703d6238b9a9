package hostsetup

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// Dropped connections are a problem in status and one line of the log while they are dropped, and again later.
func TestDroppedConnectionsAreReportedWhileTheyLast(t *testing.T) {
	var log bytes.Buffer
	var total uint64
	var err error
	w := &DropWatch{log: slog.New(slog.NewTextHandler(&log, nil)), total: func() (uint64, error) { return total, err }}
	w.sample() // there were some before the start
	steps := []struct {
		total uint64
		err   error
		looks int
		warns string // empty: nothing
		lines int    // of the log, so far
	}{
		{total: 9, looks: 1},
		{total: 10, looks: 1, warns: "dropped 10 packets", lines: 1},
		{total: 500, looks: 1, warns: "dropped 500 packets", lines: 1},
		{err: errors.New("no answer"), looks: 1, lines: 1},
		{total: 500, looks: droppedKept, lines: 1},
		{total: 510, looks: 1, warns: "dropped 10 packets", lines: 2},
		{total: 3, looks: 1, lines: 2}, // counters begin again
		{total: 13, looks: 1, warns: "dropped 10 packets", lines: 3},
	}
	for i, step := range steps {
		total, err = step.total, step.err
		if warns := strings.Join(w.Warnings(), "\n"); !strings.Contains(warns, step.warns) || (warns == "") != (step.warns == "") && step.looks == 1 {
			t.Errorf("step %d: %q, want %q", i, warns, step.warns)
		}
		for range step.looks {
			w.sample()
		}
		if n := strings.Count(log.String(), "no source port is free"); n != step.lines {
			t.Errorf("step %d: %d lines, want %d:\n%s", i, n, step.lines, log.String())
		}
	}
	if warns := w.Warnings(); len(warns) != 1 {
		t.Errorf("at last: %q", warns)
	}
}
