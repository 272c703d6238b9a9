package notify

import (
	"cmp"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/proxier/report"
)

const (
	// After a failure an object waits between firstWait and maxWait for another call.
	firstWait = time.Second
	maxWait   = time.Minute

	// patientRow is after how many failures in a row no call is made for a time, whatever it is for.
	patientRow = 3
)

// failed are the objects that calls have failed for.
type failed struct {
	of  map[report.Object]retry
	why string // the last one

	inRow       int // calls that failed, since the last that succeeded
	pausedUntil time.Time
}

// A retry is when an object has its next call.
type retry struct {
	at    time.Time
	tries int // that failed
}

// waitAfter returns how long to wait after so many failures.
func waitAfter(n int) time.Duration {
	return min(firstWait<<min(n-1, 6), maxWait)
}

// fail notes a call that failed. It reports whether calls had succeeded before.
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

// succeeded notes a call that succeeded. It reports whether no object waits any more.
func (f *failed) succeeded(batch []changes.Change) (over bool) {
	f.inRow, f.pausedUntil = 0, time.Time{}
	before := len(f.of)
	for _, ch := range batch {
		delete(f.of, ch.Object)
	}
	return before > 0 && len(f.of) == 0
}

// due returns up to most objects whose time has come, those first that wait longest.
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

// retryNow has all objects called for at once, as if nothing had failed.
func (f *failed) retryNow() {
	f.inRow, f.pausedUntil = 0, time.Time{}
	for o := range f.of {
		f.of[o] = retry{}
	}
}
