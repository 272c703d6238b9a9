package disk

import (
	"syscall"
	"testing"
	"time"
)

// When a file was changed is told by mtime, unless that is not when it came.
func TestStampChanged(t *testing.T) {
	placed := time.Unix(1_000_000, 5)
	tests := []struct {
		name    string
		written time.Time
		want    time.Time
	}{
		{"written in place", placed, placed},
		{"written, then renamed", placed.Add(-time.Minute), placed.Add(-time.Minute)},
		{"written long before, as by cp -p", placed.Add(-time.Hour), placed},
		{"years ago", time.Unix(0, 0), placed},
		{"in the future", placed.Add(time.Hour), placed},
	}
	for _, tt := range tests {
		s := Stamp{Mtime: syscall.NsecToTimespec(tt.written.UnixNano()), Ctime: syscall.NsecToTimespec(placed.UnixNano())}
		if got := s.Changed(); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
