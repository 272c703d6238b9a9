// Package haproxy reads haproxy.cfg, of which sections of mode tcp are services.
//
// The text is split into sections with their defaults. Each listen or frontend section becomes a
// service of every group of addresses that it binds, with the servers of its backend as endpoints
// and the nearest health check. Rules about sources are evaluated as sets of addresses.
//
// The main types are the section, the configLine, the checkReader and the sourceReader.
package haproxy
