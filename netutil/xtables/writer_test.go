package xtables

import (
	"context"
	"errors"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A writer that hangs loses the lock, and its end takes the lock from nobody.
func TestWriterThatHangs(t *testing.T) {
	defer func(usual time.Duration) { writerPatience = usual }(writerPatience)
	tool := &Tool{Variant: NFT}
	lock := func(ctx context.Context, patience time.Duration) func() {
		t.Helper()
		writerPatience = patience
		unlock, err := tool.LockWriter(ctx)
		fatal.If(t, err)
		return unlock
	}
	ended, end := context.WithCancel(t.Context())
	end()
	waits := func(when string) {
		t.Helper()
		writerPatience = time.Hour
		if _, err := tool.LockWriter(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: waiting for the lock after the end: %v", when, err)
		}
	}
	unlockHanging := lock(t.Context(), time.Hour)
	waits("while another one writes")
	unlock := lock(t.Context(), time.Millisecond)
	waits("while one writes that waited long enough")
	unlockHanging()
	waits("after the end of the one that hung")
	unlock()
	unlockHanging = lock(ended, time.Hour) // it is free
	lock(t.Context(), time.Millisecond)()
	lock(ended, time.Hour)() // the one that hangs does not keep the lock
	unlockHanging()
}
