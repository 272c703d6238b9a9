package daemon

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
)

// queued returns a queue to w, which ends with the test at the latest.
func queued(t *testing.T, w io.Writer) *journal.Queue {
	q := journal.NewQueue(w)
	t.Cleanup(q.Close)
	return q
}

// said returns the log with all that was logged before.
func (r *running) said() string {
	r.t.Helper()
	before := strings.Count(r.log.String(), askedLine)
	fmt.Fprint(r.queue, askedLine)
	r.eventually("written", func() bool { return strings.Count(r.log.String(), askedLine) > before })
	return r.log.String()
}

// askedLine is a line of the log that stands where a test asked what the log says.
const askedLine = "asked what the log says\n"

// A log that nobody reads keeps svcproxy from nothing, to end among that, and status tells of it.
func TestLogThatNobodyReads(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	fatal.If(t, r.stop())
	r.told = new(logged)
	r.stderr, _ = logtest.FullPipe(t)
	r.start()
	r.ready()
	const lines = 10_000 // more than there is room for
	for range lines {
		fmt.Fprintln(r.queue, "a line")
	}
	r.write("more.toml", many(1))
	r.eventually("in step", func() bool { names, _, _ := r.kernel.seen(); return names == "default/svc-0 default/web" })
	if warnings := strings.Join(r.status().Warnings, "\n"); !strings.Contains(warnings, "what takes the log does not read") {
		t.Errorf("status warns of %q", warnings)
	}
	r.expectStop("what takes its log")
}
