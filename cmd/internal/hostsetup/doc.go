// Package hostsetup makes the settings of a host that svcproxy depends on, once
// and with all rights, so that the daemon can do with few; and it verifies them.
package hostsetup
