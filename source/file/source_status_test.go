package file

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// While a disk does not answer a Status is told all the same, and no more than one look waits for it.
func TestStatusWhileDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Dir: t.TempDir()})
		release, looks := make(chan struct{}), 0
		s.statfs = func(string, *unix.Statfs_t) error {
			looks++
			<-release
			return unix.EIO
		}
		const said = "does not answer"
		for range 20 {
			begun := time.Now()
			st := s.Status()
			if took := time.Since(begun); took != aroundPatience || !strings.Contains(strings.Join(st.Warnings, "\n"), said) {
				t.Errorf("after %v: %q", took, st.Warnings)
			}
		}
		close(release)
		synctest.Wait()
		if st := s.Status(); looks != 2 || strings.Contains(strings.Join(st.Warnings, "\n"), said) {
			t.Errorf("%d looks, and then: %q", looks, st.Warnings)
		}
	})
}
