package netnstest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

// Memory returns what a process has of the host's memory, now and at its peak, in bytes.
func Memory(pid int) (now, peak int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			peak = kib << 10
		}
	}
	if err == nil && now == 0 {
		err = fmt.Errorf("process %d has ended", pid)
	}
	return now, peak, err
}

// A Usage is what a process has used.
type Usage struct {
	Pid, Parent, Group int
	Processor          time.Duration
	Children           time.Duration // the processor time of children that have ended
	Resident           int           // bytes
}

// UsageOf returns that of a process.
func UsageOf(pid int) (Usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may have spaces
	fields := strings.Fields(after)                // from the third that proc_pid_stat(5) counts
	number := func(at int) int {
		n, e := strconv.Atoi(fields[min(at-3, len(fields)-1)])
		err = cmp.Or(err, e)
		return n
	}
	u := Usage{
		Pid: pid, Parent: number(4), Group: number(5), Resident: number(24) * os.Getpagesize(),
		Processor: time.Duration(number(14)+number(15)) * tick,
		Children:  time.Duration(number(16)+number(17)) * tick,
	}
	if err != nil {
		return Usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	return u, nil
}

// Usages returns those of all processes for which of reports true.
func Usages(of func(Usage) bool) (list []Usage, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if u, err := UsageOf(pid); err == nil && of(u) { // else it has ended
			list = append(list, u)
		}
	}
	return list, err
}
