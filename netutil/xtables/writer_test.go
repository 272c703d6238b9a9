package xtables

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A writer that hangs loses its turn, and its end takes the turn from nobody.
func TestTurnOfAWriterThatHangs(t *testing.T) {
	var turn turn
	releaseHanging, err := turn.acquire(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := turn.acquire(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a turn after the end: %v", err)
	}
	release, err := turn.acquire(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	releaseHanging()
	if _, err := turn.acquire(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the writer that hung ended the turn of the next one: %v", err)
	}
	release()
	release, err = turn.acquire(ended, time.Hour) // it is free
	if err != nil {
		t.Error(err)
	}
	release()
}
