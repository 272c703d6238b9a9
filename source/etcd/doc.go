// Package etcd follows the service files below a prefix in etcd. It implements remote.Fetcher, and does not parse services.
//
//	connect ──► list ──────────────► watch ──────────────────► remote.Set
//	to one      every key below      each change from the      all texts at
//	member      the prefix, at one   revision after that       a revision
//	            revision
//
// A session is one such sequence with one member. When it ends (because of a compaction, a partition, a member without a
// leader or an expired token), a new session begins with the next member. The new session lists all keys again, so that no
// change is missed and a cluster that was restored from a backup is recognized. A watch is never resumed: a restored cluster
// that has not yet reached the requested revision would accept the watch and stay silent.
//
// All changes of a revision are in the same Set. A Set may combine several revisions. What a member sends is bounded before
// it is kept: answers by the gRPC library, keys and bytes by contents.
//
// This package uses the generated protocol (etcdserverpb) instead of the etcd client. The watches of the client resume
// automatically, hide the revision and the cluster of an answer, and keep any number of fragments and answers in memory.
package etcd
