package wake_test

import (
	"testing"

	"svcproxy.dev/svcproxy/internal/wake"
)

func TestOnceNeverBlocks(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 2 { // the second does not wait
		if wake.Once(c); len(c) != 1 {
			t.Fatalf("the channel holds %d values, want 1", len(c))
		}
	}
}
