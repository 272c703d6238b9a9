// Package hosts tests several hosts that run svcproxy with the same files, beside the programs that
// make them one: routers that speak BGP and spread connections, and keepalived. Each test makes a
// network of namespaces of its own.
package hosts
