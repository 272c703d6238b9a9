// Package report says what people ask of a Loop, as functions of one Snapshot.
//
// A Snapshot is what the Loop holds at one moment, and whom to ask for what it does not know: health checks, routers,
// listeners of the host. StatusOf lists services, families and refused units; Summarize says the same in a size that
// does not grow with the services, and CountsOf in numbers. Announced says which addresses the network is told of, and
// why the others are withheld; Doubts, what is valid and cannot be meant on this host. Nothing here changes
// anything, or waits for a sync.
//
// A FamilyPlan is what a sync would change. Its Consequences are what that means for connections, which Count
// counts. Describe says how two versions of a service differ, for the log.
//
// The files: snapshot, what a Loop knows; used, services as families resolved them; status (services and families), states
// (endpoints), unserved (what a backend could not make), announced, doubts, summary with runs, counts, find (which services are how), watched (states, to compare); plan*; describe and edits.
package report
