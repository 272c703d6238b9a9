//go:build bench && vm

package bench

import "time"

// In a guest there is IPVS, and the processor is emulated. A kernel with 2 GiB tracks
// 65,536 connections by default.
func init() {
	inGuest = []stress{{ipvs, 1_000, 60_000, 0, 100, 5 * time.Minute, time.Minute, 0}}
}
