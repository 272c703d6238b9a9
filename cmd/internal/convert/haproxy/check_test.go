package haproxy

import (
	"testing"
	"time"
)

func TestHAProxyTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1500": 1500 * time.Millisecond, "20us": 20 * time.Microsecond, "3s": 3 * time.Second, "2m": 2 * time.Minute, "1d": 24 * time.Hour,
		"2147483647d": 1 << 62, // the longest that it gives
	} {
		if got, err := haproxyTime(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"": `"" is not a duration`, "soon": `"soon" is not a duration`, "3w": `"3w" is not a duration`, "2147483648": `"2147483648" is not a duration`} {
		if _, err := haproxyTime(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
