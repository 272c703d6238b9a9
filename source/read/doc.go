// Package read turns texts into services and faults. It knows nothing of what is in use.
//
// Rules say what files are held to; a Version is what was found in the place of a file at one time: services, or the endpoints
// of a list, or faults; a Bound has the services of a version with the endpoints of their lists.
//
//	rules      which files are read, and what they may hold
//	parse      the text of a file; chunks: service by service, so that what has not changed is not read again
//	schema     the keys; service, ports, health, defaults: what they mean; list: a file of endpoints
//	hints      what was meant by an unknown key; warn: what is doubtful; positions: where keys stand; faults: of a file as a whole
//	owners     who may claim what, and whose a text is; share: what of it a service claims that is not in it
//	programs   which programs of checks may run, also in what was accepted before
//	version    a Version; lack: what one lacks that another has
//	bind       services with the endpoints of lists; bind_version: all of a version
//	once       for commands: a file, a directory (dir), with its lists (together); places: where endpoints stand
package read
