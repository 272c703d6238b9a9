// Package conntrack lists and follows what connection tracking has in the kernel, and removes and changes it.
// List gives each Connection that a Filter selects, Prune does with each Flow what a Verdict says, and a Follower tells Events.
//
//	entry.go           what an entry says
//	list.go            listing, filtered by the kernel where it can
//	prune.go, edit.go  removing, moving and marking, in batches
//	events.go          what begins and ends
//	stats.go           how many entries there are, what could not begin
//	encode.go          attributes of messages
//	socket.go          the netlink socket
//
// ti-mo/conntrack counts. Its dump is decoded whole before the first flow can be judged and cannot be filtered by address, its
// removal is a message and an answer for each flow, and its events are those of everybody: docs/dependencies.md has the figures.
package conntrack

import "golang.org/x/sys/unix"

func family(ipv6 bool) byte {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
