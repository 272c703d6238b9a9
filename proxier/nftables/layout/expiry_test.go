package layout

import (
	"testing"
	"time"
)

func TestExpiryOfAffinity(t *testing.T) {
	tests := []struct{ asked, want time.Duration }{
		{time.Millisecond, time.Second},
		{time.Second, time.Second},
		{2 * time.Second, 2 * time.Second},
		{10 * time.Second, 11 * time.Second},
		{10 * time.Minute, 675 * time.Second},
		{675 * time.Second, 675 * time.Second},
		{676 * time.Second, 803 * time.Second},
		{3 * time.Hour, 3 * time.Hour}, // the default
		{3*time.Hour + 1, 12844 * time.Second},
		{24 * time.Hour, 24 * time.Hour},
		{25*time.Hour + 1, 25*time.Hour + time.Second},
	}
	for _, tt := range tests {
		if got := expiryClass(tt.asked); got != tt.want {
			t.Errorf("timeout %s: got %s, want %s", tt.asked, got, tt.want)
		}
	}
	distinct := map[time.Duration]bool{}
	for asked := time.Second; asked <= 24*time.Hour; asked += time.Second {
		got := expiryClass(asked)
		if longer := got - asked; longer < 0 || longer > asked/5+time.Second {
			t.Fatalf("timeout %s: got %s", asked, got)
		}
		distinct[got] = true
	}
	if n := len(distinct); n > 64 {
		t.Errorf("%d distinct timeouts", n)
	}
}
