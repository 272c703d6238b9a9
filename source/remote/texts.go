package remote

import "context"

// A Text is one service file as a server has it.
type Text struct {
	Name   string // names it in faults, status and history: a URL or etcd:/KEY
	Data   []byte
	Signed bool // a key of the settings vouches for it
}

// A Set is every service file that a server has at one time.
type Set struct {
	Version string // of the server's own, for logs; may be empty. One that is a lower number than before is older
	Texts   []Text // sorted by Name, each name once; their Data is never changed

	// Of a server of several answers, each with a name that [guard] allow_empty can have:
	Empty   []string // those that list nothing
	Partial bool     // some have not come yet: what they list is not in Texts, and stays as it is known
}

// A Fetcher follows a server. Run calls give with each new Set, first as soon as it has one, and report with nil after each
// answer of the server and with an error when it cannot be reached or its answer is refused, until ctx ends. It belongs to one goroutine.
type Fetcher interface {
	Run(ctx context.Context, give func(Set), report func(error)) error
}
