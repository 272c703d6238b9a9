package lvs

import (
	"context"
	"errors"
	"os"
	"syscall"
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

// Only an answer that is about what was sent is a refusal of it.
func TestRefusalsAreAnswersToTheRequest(t *testing.T) {
	for _, tt := range []struct {
		err     error
		refused bool
	}{
		{syscall.EINVAL, true}, {syscall.EAFNOSUPPORT, true},
		{syscall.ENOMEM, false}, {syscall.EPERM, false}, {syscall.EEXIST, false}, {syscall.ESRCH, false},
		{context.DeadlineExceeded, false}, {ErrReloaded, false}, {nil, false},
	} {
		for _, got := range []error{serverError(tt.err), newDestinationError(tt.err)} {
			if errors.Is(got, ErrRefused) != tt.refused || (got == nil) != (tt.err == nil) {
				t.Errorf("%v became %v, want a refusal: %v", tt.err, got, tt.refused)
			}
		}
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{0: 0, time.Millisecond: time.Second, time.Second: time.Second, 1500 * time.Millisecond: 2 * time.Second} {
		if got := up(in); got != want {
			t.Errorf("%v became %v, want %v", in, got, want)
		}
	}
}
