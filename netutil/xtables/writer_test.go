package xtables

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A writer that hangs does not hold up others for long, and its end takes the lock from nobody.
func TestWriterThatHangs(t *testing.T) {
	defer func(usual time.Duration) { writerPatience = usual }(writerPatience)
	tool := &Tool{Variant: NFT}
	lock := func(ctx context.Context, patience time.Duration) func() {
		t.Helper()
		writerPatience = patience
		unlock, err := tool.LockWriter(ctx)
		if err != nil {
			t.Fatal(err)
		}
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
	lock(t.Context(), time.Millisecond)()
	waits("after one that waited long enough")
	unlockHanging()
	lock(ended, time.Hour)() // it is free
}
