// Package simulate runs the program through random hours inside a synctest bubble: claims, policy, the Loop, health checks,
// conditions, and what is announced. The kernel is a model in memory, endpoints answer as the test says, and there are no
// files but that of proxier/conditions. Package policy is the judge:
//
//   - While something changes, each packet meets what was legal under a configuration and health in force within the last
//     second. A Sync that fails or hangs, and a restart, extend that second until the next good Sync.
//   - After a rest in which nothing happens, each packet meets exactly what is legal now, and what is announced is what
//     docs/many-hosts.md says.
//   - An announced address is balanced by the kernel all the time.
//   - What others damage is repaired within a second where the backend hears of it, and at the next comparison otherwise.
//   - Nothing hangs, and no goroutine is left.
//
// The files:
//
//	simulate   the test: runs, and how a run that fails is shrunk
//	step       what can happen, drawn from a seed
//	site       the parts of the program, put together as the daemon does it
//	kernel     the model of the kernel, with its backend
//	claims     a model of which services are in use
//	judge      what was in force when, and what that allows
//
// Some hundred hours take a minute or two:
//
//	go test ./test/simulate -v -hours 200
//
// A run is repeated by its seed. The program draws the jitter of its probes itself, and goroutines that are ready at one
// instant run in any order: a failure that depends on these may need several tries.
package simulate
