// Package nft is a thin hand on one nf_tables table, over netlink.
//
// A Batch is one transaction, kept as the bytes that are sent: a million
// elements are some 60 MB and no garbage. Rules are lists of expressions of
// github.com/google/nftables/expr; that library's own connection is not used, as
// it holds each element of a transaction as an object, and reads elements back
// at a quarter of the speed.
package nft
