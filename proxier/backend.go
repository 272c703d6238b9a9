package proxier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Backend holds one kernel subsystem to a State, for one family. Its methods
// are called from one goroutine at a time, except for Look.
type Backend interface {
	// Sync makes the kernel hold st. delta says what changed since the last Sync that succeeded:
	//
	//   - with changes: Sync writes them, and repairs what Look or Watch reported;
	//   - empty: it only repairs that; how much of the kernel it reads for it is the backend's choice;
	//   - nil: it compares everything, unless the backend knows that nobody else has
	//     written, and repairs every difference.
	//
	// After an error the next call has a nil delta, but an error that is a *PartialError
	// counts as success: all is done that can be done. A Sync that takes long calls
	// Progressed, and one that was given up goes on from what it has done.
	Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error

	// Look compares the kernel with what the last Sync that succeeded left there,
	// and reports whether something differs that the next Sync repairs. It is called
	// from another goroutine than the other methods, runs beside a Sync, holds up
	// none, and passes over what a Sync has changed since it began.
	Look(ctx context.Context) (differs bool, err error)

	// Plan says what Sync with a nil delta would change now, and changes nothing.
	Plan(ctx context.Context, st *policy.State) ([]Change, error)

	// Cleanup removes all that any Sync of this backend may ever have made, and
	// nothing else. Nothing there is no error.
	Cleanup(ctx context.Context) error
}

// ErrRestart is wrapped by an error of a Backend that no other call in this process overcomes, but a new process does:
// Loop.Run returns it.
var ErrRestart = errors.New("svcproxy has to be restarted")

// A PartialError is the error of a Sync that could not make the virtual servers of some
// services: the kernel lacks what they need, or another program has them. Every Sync
// names all of them, and one with a nil delta tries them again.
type PartialError struct {
	N   int   // how many virtual servers
	Err error // why, the first ones

	// Frontends do not balance in the kernel as the State says: true if not at all,
	// false if only in part. Frontends that do not balance anyway may be among them.
	Frontends map[policy.FrontendKey]bool
}

func (e *PartialError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Err }

// maxErrors is how many errors of one sync are reported; one cause can lead to thousands.
const maxErrors = 8

// Failures collects the errors of a sync that continues.
type Failures struct {
	N    int // how many there were
	errs []error
}

// Add adds an error, if it is not nil.
func (f *Failures) Add(err error) {
	if err == nil {
		return
	}
	if f.N++; f.N <= maxErrors {
		f.errs = append(f.errs, err)
	}
}

// Join returns the first errors and the number of others; nil if there are none.
func (f *Failures) Join() error {
	if more := f.N - len(f.errs); more > 0 {
		return errors.Join(append(f.errs, fmt.Errorf("and %d more", more))...)
	}
	return errors.Join(f.errs...)
}

// JoinPartialErrors joins those that are not nil into one error; nil if there are none. A frontend that does not balance at all
// according to one of them does not in the sum.
func JoinPartialErrors(all ...*PartialError) error {
	sum := PartialError{Frontends: make(map[policy.FrontendKey]bool)}
	var errs []error
	for _, e := range all {
		if e == nil {
			continue
		}
		sum.N += e.N
		errs = append(errs, e.Err)
		for key, whole := range e.Frontends {
			sum.Frontends[key] = sum.Frontends[key] || whole
		}
	}
	if len(errs) == 0 {
		return nil
	}
	sum.Err = errors.Join(errs...)
	return &sum
}

// A Change is one kernel object that a Sync would touch.
type Change struct {
	Op     string `json:"op"`     // "add", "change" or "remove"
	Object string `json:"object"` // in the words of the kernel's own tools, as in "chain nat SVCP-SERVICES"
}

// A Remembered is the endpoint that a client with session affinity keeps.
type Remembered struct {
	Target netip.AddrPort
	Left   time.Duration // until that ends, unless the client comes again
}

// An Object is a part of what a backend has in the kernel for a frontend.
type Object struct {
	Name    string `json:"name"` // in the words of the kernel's tools
	Present bool   `json:"present"`
}

type progressKey struct{}

// Progressed says that a part of the work under ctx is done. A Sync or a Look may
// take as long as it has to, but each of its parts must end within
// loop.Config.SyncTimeout: what hangs is given up, what is merely large is not.
func Progressed(ctx context.Context) {
	if mark, ok := ctx.Value(progressKey{}).(func()); ok {
		mark()
	}
}

// WithProgress returns a context under which Progressed calls mark.
func WithProgress(ctx context.Context, mark func()) context.Context {
	return context.WithValue(ctx, progressKey{}, mark)
}
