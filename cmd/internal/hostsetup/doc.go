// Package hostsetup makes the settings of a host that svcproxy depends on, once
// and with all rights, so that the daemon can do with few; and it verifies them. A FeatureWarner and a
// DropWatch warn of what only shows while services are served.
package hostsetup
