// Package reader has what the readers of all formats share.
//
// A Result collects Services, each of the project's own model, and Notes about what is not carried
// over, with the Position in the input. The same Note is kept once, services get names that are fit
// and unique, and Grow bounds what a short text may stand for. Beside them are the parts of texts
// that several formats have: words in quotes, ranges of addresses and ports.
//
// The main types are the Result, the Service and the Note.
package reader
