// Package keepalived reads keepalived.conf, as far as it is about virtual servers.
//
// A parser makes plain lines: without comments, with the files that are included, and with
// definitions replaced. Of these it makes nodes, one statement of the whole text at a time, which
// keepalived turns into virtual servers of package ipvs, with a health check for each kind of
// checker.
//
// The main types are the parser, the node and the checkReader.
package keepalived
