package remote

import (
	"context"
	"slices"
	"strings"
)

// A Text is one service file as a server has it.
type Text struct {
	Name   string // names it in faults, status and history: a URL or etcd:/KEY
	Data   []byte
	Signed bool // a key of the settings vouches for it
}

// A Set is every service file that a server has at one time.
type Set struct {
	Version string // of the server's own, for logs; may be empty. One that is a lower number than before is older
	Counter string // who counts versions that are numbers, for people; those of another one may be older
	Texts   []Text // sorted by Name, each name once; their Data is never changed

	// Of a server of several answers, each with a name that [guard] allow_empty can have:
	Empty   []string // those that list nothing; each can list what its directory has, and all below
	Partial bool     // some have not come yet: status says so

	// Unknown are names that the server has not spoken of, each whole, or the beginning of names, with "/" at its end.
	// What was known of them stays. None in a Set that is Partial: all that is not in Texts.
	Unknown []string
}

// Leaves reports whether the Set says nothing of a name that it does not have, so that what was known of it stays.
func (s *Set) Leaves(name string) bool {
	return s.Partial && len(s.Unknown) == 0 || slices.ContainsFunc(s.Unknown, func(u string) bool {
		return name == u || strings.HasSuffix(u, "/") && strings.HasPrefix(name, u)
	})
}

// A Fetcher follows a server. Run calls give with each new Set, first as soon as it has one, and report with nil after each
// answer of the server and with an error when it cannot be reached or its answer is refused, until ctx ends. It belongs to one goroutine.
type Fetcher interface {
	Run(ctx context.Context, give func(Set), report func(error)) error
}

// Below reports whether a name lies in the directory of an answer's name, or below. An answer that is not a URL has all.
func Below(name, answer string) bool {
	return strings.HasPrefix(name, answer[:strings.LastIndexByte(answer, '/')+1])
}
