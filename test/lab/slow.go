package lab

import (
	"os"
	"strconv"
	"time"
)

// EnvSlow says how many times as long as on a host everything takes, where the
// processor is emulated: a number, 1 by default.
const EnvSlow = "SVCPROXY_LAB_SLOW"

var slowness = func() time.Duration {
	n, err := strconv.Atoi(os.Getenv(EnvSlow))
	if err != nil || n < 1 {
		return 1
	}
	return time.Duration(n)
}()

// Fewer returns how many times to do here what is done n times on a host.
func Fewer(n int) int { return max(1, n/int(slowness)) }

// Slow returns how long something may take here that may take d on a host.
func Slow(d time.Duration) time.Duration { return slowness * d }
