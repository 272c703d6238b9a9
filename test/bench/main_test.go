//go:build bench

// Package bench compares svcproxy with the layout of rules that kube-proxy writes,
// in iptables and in nftables mode, and with the cost of iptables itself. All that is compared is
// measured in one run on one machine; only ratios are held to a promise, never a
// time. As root:
//
//	go test -tags bench -count 1 -run TestBench -v -timeout 30m ./test/bench
//	go test -tags bench -count 1 -run TestBench/legacy/change -v ./test/bench
//
// TestStress shows what a change takes in peace and while tables are full and others
// write rules, for each variant, in one table. TestRepair shows how long new
// connections fail after others have broken what is ours, in another. TestHeard
// shows when another program hears of the element that a change of a file is about,
// TestStart how long a start takes beside the kernel's own load.
//
// Without -count 1 go test may print an earlier run again: it does not see that the
// svcproxy which this package builds and runs has changed.
//
// All services are IPv4. The daemon runs with both families, as by default, so
// that start to ready has an empty IPv6 family in it.
package bench

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// Environment variables that make a run smaller. A run with any of them prints
// ratios but is not held to them: they are promised for the sizes below.
const (
	envServices = "SVCPROXY_BENCH_SERVICES" // of the large node
	envMany     = "SVCPROXY_BENCH_MANY"     // of the large node in nftables mode
	envCompared = "SVCPROXY_BENCH_COMPARED" // with kube-proxy's layout on iptables-nft
	envLoads    = "SVCPROXY_BENCH_LOADS"    // first syncs and loads of each kind
	envConnects = "SVCPROXY_BENCH_CONNECTS" // connections to each service
	envChanges  = "SVCPROXY_BENCH_CHANGES"
)

// endpointsEach is how many endpoints every service has.
const endpointsEach = 10

var (
	binary func() (string, error) // builds svcproxy once
	quick  bool                   // some environment variable is set

	services = size(envServices, 10_000)
	many     = size(envMany, 100_000)
	// At 10,000 services iptables-nft-restore needs over 19 minutes for kube-proxy's layout.
	compared = size(envCompared, 1_000)
	loads    = size(envLoads, 3)
	connects = size(envConnects, 4_000)
	changes  = size(envChanges, 21)
)

// size returns the number that an environment variable holds, or normal.
func size(env string, normal int) int {
	n, err := strconv.Atoi(os.Getenv(env))
	if err != nil || n <= 0 {
		return normal
	}
	quick = true
	return n
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	netnstest.CommandTimeout = 5 * time.Minute // kube-proxy's layout takes iptables-nft-restore some 5 s
	dir, err := os.MkdirTemp("", "svcproxy-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = sync.OnceValues(func() (string, error) { return lab.Build(dir) })
	return m.Run()
}
