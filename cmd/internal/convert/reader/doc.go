// Package reader has what the readers of all formats share.
//
// A Result collects Services, each of the project's own model, and Notes about what is not carried
// over, with the Position in the input. A Note that says the same as one before names its line
// there, services get names that are fit and unique, and Grow bounds what a short text may stand for.
//
// A Service takes endpoints by AddEndpoint and the checks of its servers by SetCheck, which decide
// what a service can have of them. An Input has lines, a Syntax splits them into words, and Ranges
// are sets of addresses.
//
// The main types are the Result, the Service and the Note.
package reader
