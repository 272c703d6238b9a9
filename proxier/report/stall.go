package report

import (
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Stall is work of a family that makes no progress.
type Stall struct {
	Family policy.Family
	Work   string // "sync", "plan" or "comparison with the kernel"
	For    string // what it waits for, as in "ip6tables-restore"
	Detail string // what is known of that besides, as who holds a lock
	Since  time.Time
}

// String says it without the time.
func (s Stall) String() string {
	text := "the " + s.Work + " waits for " + s.For
	if s.Detail != "" {
		text += "; " + s.Detail
	}
	return text
}

// Error makes a Stall the reason why something is not done yet.
func (s Stall) Error() string { return s.String() + ", since " + s.Since.Format(time.TimeOnly) }
