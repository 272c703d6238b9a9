// Package healthcheck asks endpoints whether they are alive, on time, and says what
// their answers in a row mean. A Checker asks Questions and reports Results.
//
// It is about the endpoints that this host sends connections to. What this host
// answers to others that ask about it is package healthz.
//
// The words used here:
//
//   - question: what a health check asks of one endpoint. However many services and
//     ports ask the same, it is one question.
//   - probe: asking it once. An answer is what comes of it: passed, failed, timed
//     out, or none because of this host itself, which says nothing of the endpoint.
//   - row: answers of the same kind that follow each other.
//   - state: up or down, as rows have decided; unknown before the first answer.
//   - grid: the points in time at which a question is asked, one interval apart.
//     Where a grid begins depends on the question, so that many are spread evenly.
//   - lane: probes that share slots: those of the network, and those that run programs.
//
// Grids and durations are of the monotonic clock: setting the clock changes nothing,
// and while the machine is suspended nothing is due. After the process stood still,
// what was due meanwhile waits for its next turn, and a probe that outlasted its
// timeout by half of it is not held against the endpoint.
//
// Where connection tracking is on, a probe has an entry there. One by TCP that was
// reset is gone after 10 s (nf_conntrack_tcp_timeout_close): 10,000 endpoints each
// 5 s have 20,000 entries. One that was never answered stays for 120 s
// (nf_conntrack_tcp_timeout_syn_sent): 1,000 such endpoints each 5 s have 24,000, and
// fewer with a longer IntervalDown.
//
// Files:
//
//	question    what is asked; when two questions are one
//	result      what answers in a row mean
//	checker     what users of the package call, the goroutine that begins probes, and what a probe does
//	schedule    grids, and what is due
//	lane        how many probes are under way, and whose turn it is
//	ask*        the six types
//	words       errors as people read them
package healthcheck
