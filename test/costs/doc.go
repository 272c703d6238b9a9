// Package costs compares what operations of the program cost with testdata/costs.json: allocations and bytes allocated,
// and what a change of one service sends to the kernel. It measures no times, so it holds on any machine. A cost that
// grew is a fault, or a price that its commit explains; one that shrank is written down, so that it does not grow again
// unseen:
//
//	go test ./test/costs -update
//
// The race detector allocates too, so `make test` runs the package without it.
package costs
