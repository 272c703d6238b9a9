package keep

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
)

// Run writes what there is to write until ctx ends. What is pending then is
// written, but not synced: nothing that it replaces is removed before the next start.
func (st *Store) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			st.finish()
			return
		case <-st.wakeups:
			if st.writeMore() {
				st.wake()
			}
			st.beginSync()
		case s := <-st.synced:
			if st.endSync(s); s.err == nil { // else it is tried again with what is written next
				st.beginSync()
			}
		case f := <-st.tasks:
			f()
		}
	}
}

// enqueue has f done by the goroutine of Run, unless that has more than enough to do.
func (st *Store) enqueue(f func()) {
	select {
	case st.tasks <- f:
	default:
	}
}

func (st *Store) finish() {
	for st.writeMore() {
	}
	st.unmarkRunning()
	if st.syncing != nil {
		st.endSync(<-st.synced)
	}
}

// bootID changes with each boot of the host, random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot tells this boot of the host from others; empty: it is not known.
func Boot() string {
	text, _ := os.ReadFile(bootID)
	return strings.TrimSpace(string(text))
}

// markerPath is the path of a file that is there while the store is used, and says in
// which boot. One of another boot means that the host stopped without shutting
// down: then a file that was being replaced may be missing altogether.
func (st *Store) markerPath() string { return filepath.Join(st.lastgood, "running") }

// stoppedUncleanly reports whether the host stopped without shutting down since this was last marked.
func (st *Store) stoppedUncleanly() bool {
	was, err1 := os.ReadFile(st.markerPath())
	is, err2 := os.ReadFile(bootID)
	return err1 == nil && err2 == nil && !bytes.Equal(was, is)
}

// MarkUsed says that this boot uses the store from now on.
func (st *Store) MarkUsed() {
	st.enqueue(func() {
		if !st.marked {
			st.markRunning()
		}
	})
}

func (st *Store) markRunning() {
	is, err := os.ReadFile(bootID)
	if err == nil {
		err = st.replace(filepath.Base(st.markerPath()), is, true)
	}
	st.marked = err == nil
	st.noteError(err)
}

// unmarkRunning says that it is not used any more.
func (st *Store) unmarkRunning() {
	if st.marked {
		_ = os.Remove(st.markerPath()) // or else missing files are kept until a reload
	}
}
