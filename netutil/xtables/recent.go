package xtables

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recentDir has a file for each list of the match recent, of both variants, in
// the network namespace of the calling thread.
const recentDir = "/proc/thread-self/net/xt_recent"

// A Recent is an address on a list of the match recent, and how long ago it came.
type Recent struct {
	Addr netip.Addr
	Age  time.Duration
}

// ReadRecent returns who is on a list, in both families. Where no rule names the
// list there is none, and the error is fs.ErrNotExist.
func ReadRecent(list string) ([]Recent, error) {
	text, err := os.ReadFile(filepath.Join(recentDir, list))
	if err != nil {
		return nil, fmt.Errorf("reading who came recently: %w", err)
	}
	c, err := newTickClock()
	if err != nil {
		return nil, err
	}
	var all []Recent
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		r, err := c.parse(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("list %s of the match recent: %w", list, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// AddRecent puts addresses on a list as if each came now, the last one last: a list
// that is full forgets who came first.
func AddRecent(list string, addrs []netip.Addr) error { return writeRecent(list, "+", addrs) }

// RemoveRecent takes addresses from a list. Those that are not on it are no error.
func RemoveRecent(list string, addrs []netip.Addr) error { return writeRecent(list, "-", addrs) }

func writeRecent(list, sign string, addrs []netip.Addr) error {
	f, err := os.OpenFile(filepath.Join(recentDir, list), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("noting who came recently: %w", err)
	}
	defer f.Close() // each write has done its work
	for _, a := range addrs {
		// One address a write, at the beginning of the file: recent_mt_proc_write, net/netfilter/xt_recent.c.
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			_, err = f.WriteString(sign + a.String() + "\n")
		}
		if err != nil {
			return fmt.Errorf("noting who came recently: %w", err)
		}
	}
	return nil
}

// RecentLimit returns how many addresses a list has at most; 0: that is not known.
func RecentLimit() int {
	text, err := os.ReadFile("/sys/module/xt_recent/parameters/ip_list_tot")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return n
}

// A tickClock tells how long ago something was by the kernel's count of ticks.
type tickClock struct {
	tick time.Duration
	now  uint32 // the low bits, which are enough for 24 days of the shortest ticks
}

// newTickClock works out what the kernel does not tell: the count begins 5 minutes
// before it overflows 32 bits, INITIAL_JIFFIES in <linux/jiffies.h>, and then goes
// with the monotonic clock, but for the first moments of a boot. The resolution of
// the coarse clocks is a tick.
func newTickClock() (tickClock, error) {
	var res, now unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return tickClock{}, fmt.Errorf("asking for the length of a tick: %w", err)
	}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return tickClock{}, fmt.Errorf("asking for the time: %w", err)
	}
	if res.Nano() <= 0 {
		return tickClock{}, fmt.Errorf("a tick takes %d ns", res.Nano())
	}
	const before = 5 * time.Minute
	return tickClock{time.Duration(res.Nano()), uint32((now.Nano() - int64(before)) / res.Nano())}, nil
}

// parse reads a line as recent_seq_show writes it. Who seems to come from the
// future came just now, as far as the count of ticks can be off.
func (c tickClock) parse(line string) (r Recent, err error) {
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
	const far = 1 << 31 // beyond it a count is of the past, long ago
	ticks := c.now - uint32(stamp)
	if ahead := -ticks; ticks >= far && time.Duration(ahead)*c.tick < time.Minute {
		ticks = 0
	}
	r.Age = time.Duration(ticks) * c.tick
	return r, nil
}
