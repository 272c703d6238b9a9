// Package healthcheck asks endpoints whether they are alive, on time, and says what
// their answers in a row mean.
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
// Files:
//
//	question    what is asked; when two questions are one
//	result      what answers in a row mean
//	checker     what users of the package call
//	run         the goroutine that begins probes, and what a probe does
//	schedule    grids, and what is due
//	lane        how many probes are under way, and whose turn it is
//	answers     counts and durations for metrics
//	ask*        the six types
//	words       errors as people read them
package healthcheck
