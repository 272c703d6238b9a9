package xtables

import (
	"testing"
	"testing/synctest"
	"time"
)

// A process is one of ours until some time after it has ended: then another may have its id.
func TestChildrenAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pid = 1 << 30 // more than there can be
		started(pid)
		time.Sleep(time.Hour)
		if !Started(pid) {
			t.Error("one that runs is not known")
		}
		ended(pid)
		time.Sleep(childPatience - time.Second)
		if !Started(pid) {
			t.Error("one that has just ended is not known")
		}
		time.Sleep(time.Second)
		if Started(pid) {
			t.Error("one that has ended is known for ever")
		}
	})
}
