package source

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Position is a place in a file. The zero Position is no place.
type Position struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // from 1; 0 when only the file is known
	Col  int    `json:"col,omitempty"`  // from 1, in bytes; 0 when only the file is known
}

func (p Position) String() string {
	if p.Line == 0 {
		return Quote(p.File)
	}
	return fmt.Sprintf("%s:%d:%d", Quote(p.File), p.Line, p.Col)
}

// A Place is where a part of a service stands, seen from where the service
// begins: that moves with what stands above it in the file.
type Place struct {
	Line uint32 // so many lines below
	Col  uint32 // from 1, in bytes; in the first line: so many bytes behind
}

// A Fault says what is wrong in a file, where, and what to write instead.
// A warning is a Fault that does not keep the file from being used.
type Fault struct {
	Pos     Position `json:"pos"`
	Msg     string   `json:"message"`        // what is wrong, quoting the offending value
	Hint    string   `json:"hint,omitempty"` // what to write instead; may be empty
	Warning bool     `json:"warning,omitempty"`
}

// String returns the fault as a compiler would print it, on one line:
//
//	web.toml:2:12: unknown protocol "tpc"; want tcp, udp or sctp
func (f Fault) String() string {
	var b strings.Builder
	if f.Pos.File != "" {
		b.WriteString(f.Pos.String() + ": ")
	}
	if f.Warning {
		b.WriteString("warning: ")
	}
	b.WriteString(f.Msg)
	if f.Hint != "" {
		b.WriteString("; " + f.Hint)
	}
	return b.String()
}

// FirstError returns the first fault that is no warning; nil: there is none.
func FirstError(faults []Fault) *Fault {
	i := slices.IndexFunc(faults, func(f Fault) bool { return !f.Warning })
	if i < 0 {
		return nil
	}
	return &faults[i]
}

// AnyError reports whether any fault is more than a warning.
func AnyError(faults []Fault) bool { return FirstError(faults) != nil }

// Quote returns a file name as it may stand in a message: unchanged, unless it
// holds something that could start a new line or steer a terminal.
func Quote(name string) string {
	for _, r := range name {
		if !strconv.IsPrint(r) || r == '"' {
			return strconv.Quote(name)
		}
	}
	return name
}

// A Problem is something wrong with a service. A warning does not keep it from
// being used.
type Problem struct {
	Path    Path // in the service, by the keys of a service file
	Msg     string
	Hint    string
	Warning bool
}
