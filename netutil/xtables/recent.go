package xtables

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recentDir has a file for each list of the match recent, for both variants, in
// the network namespace of the calling thread.
const recentDir = "/proc/thread-self/net/xt_recent"

// A Recent is an address on a list of the match recent, and how long ago it was seen.
type Recent struct {
	Addr netip.Addr
	Age  time.Duration
}

// ReadRecent returns the addresses on a list, of both families. If no rule names the
// list it does not exist, and the error is fs.ErrNotExist.
func ReadRecent(list string) ([]Recent, error) {
	text, err := os.ReadFile(filepath.Join(recentDir, list))
	if err != nil {
		return nil, fmt.Errorf("reading recent clients: %w", err)
	}
	tick, now, err := ticks()
	if err != nil {
		return nil, err
	}
	var all []Recent
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		r, err := parseRecent(lines.Text(), tick, now)
		if err != nil {
			return nil, fmt.Errorf("list %s of the match recent: %w", list, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// ticks returns how long a tick of the kernel is, and the low bits of how many there were, enough for 24 days of
// the shortest. The kernel does not expose it: the count begins 5 minutes
// before it overflows 32 bits, INITIAL_JIFFIES in <linux/jiffies.h>, and then follows
// the monotonic clock, except in the first moments of a boot. The resolution of
// the coarse clocks is a tick.
func ticks() (tick time.Duration, count uint32, err error) {
	var res, now unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return 0, 0, fmt.Errorf("reading the length of a tick: %w", err)
	}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, 0, fmt.Errorf("reading the time: %w", err)
	}
	if res.Nano() <= 0 {
		return 0, 0, fmt.Errorf("a tick takes %d ns", res.Nano())
	}
	const before = 5 * time.Minute
	return time.Duration(res.Nano()), uint32((now.Nano() - int64(before)) / res.Nano()), nil
}

// parseRecent parses a line as recent_seq_show writes it. The count of ticks may be slightly
// off: what seems to be in the future is now.
func parseRecent(line string, tick time.Duration, now uint32) (r Recent, err error) {
	fields := strings.Fields(line)
	if len(fields) < 5 || !strings.HasPrefix(fields[0], "src=") || fields[3] != "last_seen:" {
		return r, fmt.Errorf("%q has no address and time", line)
	}
	if r.Addr, err = netip.ParseAddr(strings.TrimPrefix(fields[0], "src=")); err != nil {
		return r, err
	}
	stamp, err := strconv.ParseUint(fields[4], 10, 64)
	if err != nil {
		return r, err
	}
	const far = 1 << 31 // beyond it a count is in the future or long ago
	ticks := now - uint32(stamp)
	if ahead := -ticks; ticks >= far && time.Duration(ahead)*tick < time.Minute {
		ticks = 0
	}
	r.Age = time.Duration(ticks) * tick
	return r, nil
}
