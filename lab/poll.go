package lab

import "time"

const pollInterval = 10 * time.Millisecond

// Poll calls check until it returns nil, and returns its last error when patience is over.
func Poll(patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pollInterval)
	}
}
