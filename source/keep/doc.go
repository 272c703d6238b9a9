// Package keep has last good versions and their history on disk, in a state directory: what a restart finds. Package file
// says what is accepted and decided, commands only read.
//
// A Store writes copies of the versions that were accepted, an index of them, and decisions; an Entry is what it is given
// of a file, a Record what it has of one. A Revision is a version of the history, a Diff how it differs from the one before.
//
//	lastgood  for commands: what was accepted last
//	tidy      what a start left and lost
//	store     the goroutine of Run: what is pending is written, until the disk has it
//	queue     what the Store is given, and what is not on the disk yet
//	records   what was accepted; recover: what copies say that the index does not
//	history   what the history has; history_index: its index on disk; history_diff: a Diff
//	index     the index of last good versions, the copies and their names
package keep
