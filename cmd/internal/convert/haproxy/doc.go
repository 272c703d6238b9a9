// Package haproxy reads haproxy.cfg, of which sections of mode tcp are services.
//
// The text is split into sections with their defaults. Each listen or frontend section becomes a
// service of every group of addresses that it binds, with the servers of its backend as endpoints
// and the health check that comes next to what they are asked.
//
// The main types are the section, the configLine and the serverCheck.
package haproxy
