package guest

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// cycles returns the processor's time stamp counter, which emulation hands on to guests as it is.
func cycles() int64

// cyclesTime is for how long the counter is compared with the clock.
const cyclesTime = 50 * time.Millisecond

// counterRate tells a guest's kernel the rate of its counter, in kHz. Left alone it counts cycles
// while an emulated timer runs, and where the host is busy meanwhile the guest's clock is wrong
// from then on: one was seen to run seventeen times too fast.
var counterRate = sync.OnceValue(func() string {
	start, from := reading()
	time.Sleep(cyclesTime)
	end, to := reading()
	return fmt.Sprintf(" tsc_early_khz=%d", (to-from)*int64(time.Millisecond)/int64(end.Sub(start)))
})

// reading reads clock and counter at the same time: of some tries the one that took least.
func reading() (now time.Time, count int64) {
	least := time.Duration(math.MaxInt64)
	for range 100 {
		before, c := time.Now(), cycles()
		if took := time.Since(before); took < least {
			least, now, count = took, before, c
		}
	}
	return now, count
}
