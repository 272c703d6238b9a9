// Package sources has what the daemon knows of sources of services.
//
// Types are those that this build has, and Asked returns those that settings name. What a source
// does besides source.Source, as to read everything again, is an interface with one method, and
// Each calls it where a source has it. Rules are what service files are held to: what the mode in
// use can do, or any mode of this build. A Versioning answers the control socket about versions of
// service files, held changes and changes on trial.
//
// The main types are Type, a kind of source; Config, what one is opened with; and Versioning.
package sources
