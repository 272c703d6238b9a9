// Package netnstest makes network namespaces for tests, and what tests need in them.
//
// Enter moves a test into a namespace of its own, for packages that work on the namespace of their thread. A Namespace
// is one that the test is outside of: New and Make make it, Veth and SetUp link it to others, Do and Run act in it. A
// Process is a program that goes on in one, with its log; Launch starts it. Memory and UsageOf say what any process has
// used. Sweep, which the first New calls, removes what tests left that were killed.
//
// Servers to connect to are in internal/echotest, waiting in internal/pace. Package test/lab is built on all three: it
// has hosts with servers and clients, and svcproxy on them.
package netnstest
