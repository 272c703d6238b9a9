// Package monitoring has tests of configs/monitoring: alert rules and dashboard meet
// the promtool and the Prometheus of Debian, and a daemon in a network namespace.
package monitoring
