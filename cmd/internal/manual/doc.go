// Package manual writes what a packager installs beside the program: pages of the
// manual and completions for shells. Commands and their flags are those of the
// program itself; keys, their types and ranges are those of the JSON Schemas, whose
// texts are the comments of configs/reference.toml. The same sources give the same
// bytes: no page has a date.
//
// It is part of builds with the tag "manual" only:
//
//	go run -tags manual ./cmd/svcproxy manual DIR
package manual
