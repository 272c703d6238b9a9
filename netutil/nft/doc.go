// Package nft reads, changes and watches nf_tables tables over netlink. A Conn commits a Batch and reads a Listing; a Monitor
// tells what others commit.
//
// A Batch is one transaction, kept as the bytes that are sent: a million
// elements are some 60 MB and one allocation. Rules are lists of expressions of
// github.com/google/nftables/expr; that library's own connection is not used, as
// it holds each element of a transaction as an object, and reads elements back
// at a quarter of the speed.
//
// The files, each using only those before it:
//
//	wire, object            netlink attributes and messages, what a table holds
//	batch, flowtable        a transaction as bytes; flow tables and the rules for them
//	conn                    a socket, requests and their answers
//	monitor                 what others change, in a table of ours or of what has our names
//	commit                  transactions, and which monitors hear them
//	list, chainrules        what the kernel holds, of others too
//	hold, forward           tables that keep translation on, maybe gone with a socket; chains that drop
//	packetlog               packets that rules log, and traces
package nft
