package file

import (
	"testing"
	"testing/synctest"
	"time"
)

// A step that found out about files has others that come soon wait a moment, so that they become one; a step that only
// began to read a large file has not.
func TestStepsSoonAfterAFindMerge(t *testing.T) {
	for found, want := range map[bool]time.Duration{true: mergeTime, false: 0} {
		synctest.Test(t, func(t *testing.T) {
			next := newStepTimer()
			<-next.timer.C
			time.Sleep(time.Second)
			next.stepped(found, time.Hour)
			start := time.Now()
			next.soon()
			<-next.timer.C
			if got := time.Since(start); got != want {
				t.Errorf("found out about a file: %v: the next step comes after %v, want %v", found, got, want)
			}
		})
	}
}
