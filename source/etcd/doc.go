// Package etcd follows the service files below a prefix of an etcd. It is a remote.Fetcher, and knows nothing of services.
//
//	connect ──► list ──────────────► watch ──────────────────► remote.Set
//	to one      every key below      each change from the      what there is
//	member      the prefix, at one   revision after that       at a revision
//	            revision
//
// A session is all of this with one member. Whatever ends it (a compaction, a partition, a member without a leader, a token
// that expired) begins another one, with the next member: it lists again, so nothing is missed, and a cluster that was
// restored from a backup is seen as such. A watch is never resumed: a restored cluster that has not yet reached the
// revision to resume from accepts it, and stays silent.
//
// All changes of a revision are in one Set, those of several revisions may be. What a member sends is bounded before it is
// kept: answers by the library, keys and bytes by contents.
//
// The client of etcd is not used, only the generated protocol (etcdserverpb): its watches resume by themselves, do not
// show the revision and the cluster of an answer, and hold any number of fragments and answers in memory.
package etcd
