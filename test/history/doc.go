// Package history runs svcproxy under random faults, writes down what clients meet, and judges each
// attempt by the model of package policy: was what it met allowed by any configuration and health that
// could be in force then? The judge is a function of the history alone, so a history that was written
// down can be judged again.
//
// A Fact is one thing that outcomes depend on, with its values in time: the text of a service, whether
// an endpoint is alive, a drain, the addresses of the node. An Attempt is one connection or datagram of a
// client. The nemesis draws steps from a seed, does them in three lanes, and records the facts that they change.
//
// The tests need root.
package history
