package lately

import (
	"testing"
	"testing/synctest"
	"time"
)

// What is asked for again at once is found once; what hangs keeps nobody longer than
// patience, and is not begun a second time.
func TestValueIsFoundOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, slow := 0, time.Duration(0)
		l := Value[int]{Moment: time.Minute, Patience: time.Second, Find: func() int { n++; v := n; time.Sleep(slow); return v }}
		wants := func(want int, after time.Duration) {
			t.Helper()
			begun := time.Now()
			if got, inTime := l.Get(); got != want || time.Since(begun) != after || inTime != (after == 0) {
				t.Errorf("%d after %v, in time: %v; want %d after %v", got, time.Since(begun), inTime, want, after)
			}
		}
		wants(1, 0)
		time.Sleep(59 * time.Second)
		wants(1, 0)
		time.Sleep(time.Second)
		slow = 10 * time.Second
		wants(1, time.Second)
		wants(1, time.Second)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		wants(2, 0)
		if n != 2 {
			t.Errorf("found %d times, want 2", n)
		}
	})
}
