package report

import (
	"fmt"
	"strconv"
	"strings"
)

// minRun is from how many ports in a row on one line tells of them all: those of a range of a file.
const minRun = 4

// runs returns list without what says the same of ports in a row as one before: alike returns what two must
// have in common, and the port, which ascends. through is told the last port of the first of at least minRun.
func runs[T any, K comparable](list []T, alike func(*T) (K, uint16), through func(first *T, last uint16)) []T {
	if len(list) < minRun {
		return list
	}
	type run struct {
		last uint16
		n    int
		told bool
	}
	var all []run
	open, in := make(map[K]int), make([]int, len(list))
	for i := range list {
		key, port := alike(&list[i])
		r, ok := open[key]
		if !ok || port != all[r].last+1 {
			r = len(all)
			open[key], all = r, append(all, run{})
		}
		in[i], all[r].last, all[r].n = r, port, all[r].n+1
	}
	out := make([]T, 0, len(list))
	for i, x := range list {
		switch r := &all[in[i]]; {
		case r.told:
			continue
		case r.n >= minRun:
			r.told = true
			through(&x, r.last)
		}
		out = append(out, x)
	}
	return out
}

// Runs returns what a table has of addresses: those that differ in nothing but ports in a row are one,
// "203.0.113.20:20000-20099/udp".
func Runs(list []FrontendStatus) []FrontendStatus {
	return runs(list, func(f *FrontendStatus) (FrontendStatus, uint16) {
		like := *f
		before, port, after := cutPort(f.Address)
		like.Address = before + after
		return like, port
	}, func(f *FrontendStatus, last uint16) { f.Address = portsTo(f.Address, last) })
}

// portsTo returns the address of a FrontendStatus with all ports up to the last.
func portsTo(address string, last uint16) string {
	before, port, after := cutPort(address)
	return fmt.Sprintf("%s%d-%d%s", before, port, last, after)
}

// cutPort cuts the address of a FrontendStatus at its port.
func cutPort(address string) (before string, port uint16, after string) {
	from := strings.LastIndexByte(address, ':') + 1
	to := max(from, strings.LastIndexByte(address, '/'))
	n, err := strconv.ParseUint(address[from:to], 10, 16)
	if err != nil {
		return address, 0, ""
	}
	return address[:from], uint16(n), address[to:]
}
