package file

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
)

// run writes what there is to write until ctx ends. What is pending then is
// written, but not synced: nothing that it replaces is removed before the next start.
func (st *store) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for st.writeMore(false) {
			}
			st.unmark()
			return
		case <-st.more:
			if st.writeMore(true) {
				st.wake()
			}
		case f := <-st.chores:
			f()
		}
	}
}

// bootID changes with each boot of the host, random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// marker is the path of a file that is there while the store is used, and says in
// which boot. One of another boot means that the host stopped without shutting
// down: then a file that was being replaced may be missing altogether.
func (st *store) marker() string { return filepath.Join(st.dir, "running") }

// lostPower reports whether the host stopped without shutting down since this was last marked.
func (st *store) lostPower() bool {
	was, err1 := os.ReadFile(st.marker())
	is, err2 := os.ReadFile(bootID)
	return err1 == nil && err2 == nil && !bytes.Equal(was, is)
}

// mark says that the store is used from now on.
func (st *store) mark() {
	is, err := os.ReadFile(bootID)
	if err == nil {
		err = st.replace(filepath.Base(st.marker()), is, true)
	}
	st.marked = err == nil
	st.note(err)
}

// unmark says that it is not used any more.
func (st *store) unmark() {
	if st.marked {
		_ = os.Remove(st.marker()) // or else missing files are kept until somebody reloads
	}
}
