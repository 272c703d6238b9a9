package notify

import (
	"cmp"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/proxier/report"
)

const (
	// After a failure, an object waits from firstWait up to maxWait for its retry.
	firstWait = time.Second
	maxWait   = time.Minute

	// patientRow is how many failures in a row pause all calls.
	patientRow = 3
)

// failed are the objects that calls have failed for.
type failed struct {
	of  map[report.Object]retry
	why string // the last error

	inRow       int // failed calls since the last successful one
	pausedUntil time.Time
}

// A retry is the time of the next call for an object.
type retry struct {
	at    time.Time
	tries int // failed calls so far
}

// waitAfter returns how long to wait after n failures.
func waitAfter(n int) time.Duration {
	return min(firstWait<<min(n-1, 6), maxWait)
}

// fail records a failed call. It reports whether no other object was waiting for a retry.
func (f *failed) fail(batch []changes.Change, err error, now time.Time) (news bool) {
	news = len(f.of) == 0
	if f.of == nil {
		f.of = make(map[report.Object]retry)
	}
	for _, ch := range batch {
		tries := f.of[ch.Object].tries + 1
		f.of[ch.Object] = retry{now.Add(waitAfter(tries)), tries}
	}
	f.why = err.Error()
	if f.inRow++; f.inRow >= patientRow {
		f.pausedUntil = now.Add(waitAfter(f.inRow - patientRow + 1))
	}
	return news
}

// succeeded records a successful call. It reports whether it was the last object that waited for a retry.
func (f *failed) succeeded(batch []changes.Change) (over bool) {
	f.inRow, f.pausedUntil = 0, time.Time{}
	before := len(f.of)
	for _, ch := range batch {
		delete(f.of, ch.Object)
	}
	return before > 0 && len(f.of) == 0
}

// due returns up to most objects whose retry is due, the longest overdue first.
func (f *failed) due(now time.Time, most int) []report.Object {
	var list []report.Object
	for o, r := range f.of {
		if !r.at.After(now) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b report.Object) int {
		return cmp.Or(f.of[a].at.Compare(f.of[b].at), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(most, len(list))]
}

func (f *failed) remove(o report.Object) { delete(f.of, o) }

// retryNow makes all retries due now, and ends a pause.
func (f *failed) retryNow() {
	f.inRow, f.pausedUntil = 0, time.Time{}
	for o := range f.of {
		f.of[o] = retry{}
	}
}
