package guest

import (
	"fmt"
	"testing"
)

// What two measurements say differs by less than a hundredth, also on a busy machine.
func TestCounterRate(t *testing.T) {
	var rates [2]int
	for i := range rates {
		start, from := reading()
		end, to := start, from
		for end.Sub(start) < cyclesTime {
			end, to = reading()
		}
		rates[i] = int((to - from) * 1_000_000 / int64(end.Sub(start)))
	}
	var told int
	if _, err := fmt.Sscanf(counterRate(), " tsc_early_khz=%d", &told); err != nil {
		t.Fatal(err)
	}
	for _, r := range rates {
		if d := r - told; d > told/100 || -d > told/100 {
			t.Errorf("%d kHz are told, and %d measured", told, rates)
		}
	}
}
