package remote

import (
	"context"
	"slices"
	"strings"
)

// A Text is one service file of a server.
type Text struct {
	Name   string // as in faults, status and history: a URL or etcd:/KEY
	Data   []byte
	Signed bool // verified by a key of the settings
}

// A Set is all service files that a server has at one time.
type Set struct {
	Version string // as the server counts, for logs; may be empty. If it is a lower number than before, the Set is older
	Counter string // what counts numeric versions, for people; a Set with a different Counter may be older
	Texts   []Text // sorted by Name, each name once; Data is never modified

	// A server may have several answers, such as indexes. Their names can be listed in [guard] allow_empty.
	Empty   []string // names of answers that list no texts; an answer can list texts in its directory and below
	Partial bool     // some answers have not come yet; status shows that

	// Unknown lists texts whose state the server has not reported: full names, or prefixes of names that end in "/". These
	// texts stay as they were last known. If Partial is set and Unknown is empty, all names outside Texts are unknown.
	Unknown []string
}

// Leaves reports whether the state of a text that is not in the Set is unknown, so that the text stays as it was last known.
func (s *Set) Leaves(name string) bool {
	return s.Partial && len(s.Unknown) == 0 || slices.ContainsFunc(s.Unknown, func(u string) bool {
		return name == u || strings.HasSuffix(u, "/") && strings.HasPrefix(name, u)
	})
}

// A Fetcher follows a server. Run runs until ctx ends, on one goroutine. It calls give with the first Set and each new one. It
// calls report with nil after each answer of the server, and with an error if the server is unreachable or its answer is
// refused.
type Fetcher interface {
	Run(ctx context.Context, give func(Set), report func(error)) error
}

// Below reports whether a name is in or below the directory of an answer. It is true for an answer that is not a URL.
func Below(name, answer string) bool {
	return strings.HasPrefix(name, answer[:strings.LastIndexByte(answer, '/')+1])
}
