package times

import (
	"testing"
	"time"
)

func TestEarlierLaterAndDueIgnoreNever(t *testing.T) {
	never, first, second := time.Time{}, time.Unix(1, 0), time.Unix(2, 0)
	for _, tt := range []struct{ a, b, earlier, later, due time.Time }{
		{first, second, first, second, first},
		{second, first, first, second, first},
		{never, second, never, second, second},
		{second, never, never, second, second},
		{never, never, never, never, never},
	} {
		if got := Earlier(tt.a, tt.b); !got.Equal(tt.earlier) {
			t.Errorf("Earlier(%v, %v) = %v", tt.a, tt.b, got)
		}
		if got := Later(tt.a, tt.b); !got.Equal(tt.later) {
			t.Errorf("Later(%v, %v) = %v", tt.a, tt.b, got)
		}
		if got := Due(tt.a, tt.b); !got.Equal(tt.due) {
			t.Errorf("Due(%v, %v) = %v", tt.a, tt.b, got)
		}
	}
}
