// Package iptables reads what iptables-save prints: rules of kube-proxy, of Docker, and others.
//
// A walker follows the rules from the chains of the kernel to each DNAT, and collects on the way
// what a packet must match and by which chance it gets there. Leaves of one frontend make a pool,
// which is a service where it can be one.
//
// The main types are the ruleset, the walker and the frontend.
package iptables
