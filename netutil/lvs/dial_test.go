package lvs

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// The library beneath takes a kernel without IPVS for one that obeys.
func TestDialSaysWhetherTheKernelHasIPVS(t *testing.T) {
	c, err := Dial(context.Background())
	_, statErr := os.Stat("/proc/net/ip_vs") // Dial may have loaded the module
	if want := statErr != nil; errors.Is(err, ErrUnsupported) != want {
		t.Fatalf("Dial gave %v; /proc/net/ip_vs: %v", err, statErr)
	}
	if err == nil {
		c.Close()
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for in, want := range map[time.Duration]uint32{0: 0, time.Millisecond: 1, time.Second: 1, 1500 * time.Millisecond: 2} {
		if got := wholeSeconds(in); got != want {
			t.Errorf("%v became %v, want %v", in, got, want)
		}
	}
}
