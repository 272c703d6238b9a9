package disk

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What does not answer is waited for once, and then neither it nor what is below it is asked; nor is a directory
// in which much does not answer, but what is beside that always is. All are asked again once it has answered.
func TestAskWaitsOnceForADeadPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dead := NewAsker("/conf"), make(chan struct{})
		var asked atomic.Int32
		wants := func(path string, hangs, answered bool, after time.Duration, times int32) {
			t.Helper()
			begun, before := time.Now(), asked.Load()
			_, ok := Ask(d, path, func() bool {
				asked.Add(1)
				if hangs {
					<-dead
				}
				return true
			})
			if took := time.Since(begun); ok != answered || took != after || asked.Load()-before != times {
				t.Errorf("%s: answered: %v after %v, asked %d times; want %v after %v, %d times", path, ok, took, asked.Load()-before, answered, after, times)
			}
		}
		wants("/far/x", true, false, FirstPatience, 1)
		wants("/far/x", false, false, 0, 0)
		wants("/far/x/below", false, false, 0, 0)
		wants("/far/beside", false, true, 0, 1)
		wants("/far/y", true, false, nextPatience, 1)
		d.BeginStep(Patience)
		wants("/far/z", true, false, Patience, 1)
		for i := range manyBelow - 3 {
			wants(fmt.Sprint("/far/", i), true, false, nextPatience, 1)
		}
		wants("/far/beside", false, false, 0, 0)
		wants("/far", false, false, 0, 0)
		wants("/beside", false, true, 0, 1)
		for i := range manyBelow {
			wants(fmt.Sprint("/conf/", i), true, false, nextPatience, 1)
		}
		wants("/conf/beside", false, true, 0, 1)
		close(dead)
		synctest.Wait()
		if len(d.Answered) != 1 || len(d.unanswered) != 0 {
			t.Errorf("nobody is told that all is answered: %+v", d)
		}
		wants("/far/x/below", false, true, 0, 1)
	})
}

// Links into as many directories as there are files do not leave a thread each behind, and what is in the directory is
// asked about all the same.
func TestFollowLeavesNoThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dead := NewAsker("/conf"), make(chan struct{})
		defer close(dead)
		var asked atomic.Int32
		for i := range 2 * maxUnanswered {
			Ask(d, fmt.Sprintf("/proc/%d/none", i), func() bool { asked.Add(1); <-dead; return true })
		}
		if got, most := asked.Load(), int32(maxUnanswered/2); got != most { // each with its directory
			t.Errorf("%d links are waited for, want %d", got, most)
		}
		if _, ok := Ask(d, "/conf/x.toml/content", func() bool { return true }); !ok {
			t.Error("a file in the directory is not asked about")
		}
	})
}

// What is beside the directory of files, or over it, does not keep it from being asked about.
func TestAskAboutTheDirectoryBesideDeadOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dead := NewAsker("/mnt/conf"), make(chan struct{})
		defer close(dead)
		for i := range manyBelow {
			Ask(d, fmt.Sprint("/mnt/", i), func() bool { <-dead; return true })
		}
		for path, want := range map[string]bool{"/mnt/beside": false, "/mnt/conf": true, "/mnt/conf/x.toml": true} {
			if _, ok := Ask(d, path, func() bool { return true }); ok != want {
				t.Errorf("%s is asked about: %v, want %v", path, ok, want)
			}
		}
	})
}

// What takes longer than a step waits is waited for while it comes further, and no longer.
func TestAskWhileMoreComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dead := NewAsker("/conf"), make(chan struct{})
		defer close(dead)
		for _, hangs := range []bool{false, true} {
			var came atomic.Int64
			begun := time.Now()
			_, ok := askWhile(d, "/far/x", Patience, &came, func() bool {
				for range 100 {
					time.Sleep(Patience * 3 / 4)
					came.Add(1)
				}
				if hangs {
					<-dead
				}
				return true
			})
			if took := time.Since(begun) - 75*Patience; ok == hangs || took < 0 || took > 2*Patience {
				t.Errorf("hangs: %v; answered: %v, %v after the last part", hangs, ok, took)
			}
		}
	})
}
