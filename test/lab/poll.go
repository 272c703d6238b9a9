package lab

import (
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

const pollInterval = 10 * time.Millisecond

// Poll calls check until it returns nil, and returns its last error when patience is
// over, which lasts longer on a busy machine.
func Poll(patience time.Duration, check func() error) error {
	start := time.Now()
	for {
		err := check()
		if err == nil || pace.Over(start, patience) {
			return err
		}
		time.Sleep(pollInterval)
	}
}
