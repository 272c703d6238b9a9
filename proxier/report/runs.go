package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// minRun is from how many ports in a row on one line tells of them all: those of a range of a file.
const minRun = 4

// Runs returns what a table has of addresses: those that differ in nothing but ports in a row, which ascend, are one,
// "203.0.113.20:20000-20099/udp".
func Runs(list []FrontendStatus) []FrontendStatus {
	if len(list) < minRun {
		return list
	}
	type run struct{ first, last, n int } // a place in out, a port, and how many ports
	var all []run
	open := make(map[FrontendStatus]int) // the last run of those that are alike, in all
	out, in := make([]FrontendStatus, 0, len(list)), make([]int, 0, len(list))
	for _, f := range list {
		before, port, after := cutPort(f.Address)
		like := f
		like.Address = before + after
		r, ok := open[like]
		if !ok || port != all[r].last+1 {
			r = len(all)
			open[like], all = r, append(all, run{first: len(out)})
		}
		all[r].last, all[r].n = port, all[r].n+1
		out, in = append(out, f), append(in, r)
	}
	for _, r := range all {
		if r.n >= minRun {
			before, port, after := cutPort(out[r.first].Address)
			out[r.first].Address = fmt.Sprintf("%s%d-%d%s", before, port, r.last, after)
		}
	}
	i := -1
	return slices.DeleteFunc(out, func(FrontendStatus) bool {
		i++
		r := all[in[i]]
		return r.n >= minRun && i != r.first
	})
}

// cutPort cuts the address of a FrontendStatus at its port.
func cutPort(address string) (before string, port int, after string) {
	from := strings.LastIndexByte(address, ':') + 1
	to := max(from, strings.LastIndexByte(address, '/'))
	n, err := strconv.ParseUint(address[from:to], 10, 16)
	if err != nil {
		return address, 0, ""
	}
	return address[:from], int(n), address[to:]
}
