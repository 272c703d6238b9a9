// Package claims knows which service owns what only one can have: a name, an address with a port, a node port. It is pure. It
// does not decide about packets; a Snapshot resolves its services for those who have no Loop.
//
// A Tracker takes units, the files or objects of sources, and says with each change which services came, changed and went: a
// Transition for each. A unit whose services want what others own is refused, or used in part, and has it as soon as they
// let go. A Snapshot is what services there are at one moment, and which units are refused.
//
//	tracker        units and their order; what is accepted and refused
//	claim          what a service wants
//	trade          files that exchange claims in one step
//	objects        objects of an API, which are used in part
//	room           bounds on how much all services are
//	snapshot       services and refusals at one moment
package claims
