// Package agent is how a test on the host has programs run and files written in
// a guest: requests and replies as JSON values over a byte stream, a virtio
// serial port. Serve is the guest's side, Client the host's.
package agent

import "io/fs"

// Port is the name of the virtio serial port.
const Port = "svcproxy.agent"

// A Command is a program to run as root.
type Command struct {
	Args  []string
	Env   []string // beside the agent's own, as "KEY=value"
	Dir   string   // "": the root of the file system
	Input []byte   // standard input
}

// A File is a file to write. Directories that it needs are made.
type File struct {
	Path string // absolute
	Mode fs.FileMode
	Data []byte
}

// A request asks for one of Run, Write and Read, or ends the run with the same ID.
type request struct {
	ID     int
	Run    *Command `json:",omitempty"`
	Write  *File    `json:",omitempty"`
	Read   string   `json:",omitempty"` // a path
	Cancel bool     `json:",omitempty"`
}

// A reply is a piece of output, or what ends a request. The agent begins with
// one of ID 0, to say that it is there.
type reply struct {
	ID     int
	Output []byte `json:",omitempty"`
	Done   bool   `json:",omitempty"`
	Code   int    `json:",omitempty"` // exit code; 128 and the signal when one ended the program
	Error  string `json:",omitempty"` // why the request could not be met
}
