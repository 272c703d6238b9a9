// Package settings has the settings in use follow svcproxy.toml.
//
// A Watcher reads the file again and again. A text counts when it is found twice, so that none is
// used that is half written, and one with faults changes nothing. What only a restart can change
// stays as it was at the start, and Pending names it. The last text that was in use is kept in the
// state directory: a start with a broken file, or without its directory, begins with that.
//
// The main types are the Watcher, the Config that it is made of, and Error, which has the faults of
// a file that nothing can begin with.
package settings
