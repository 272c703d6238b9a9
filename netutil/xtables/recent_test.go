package xtables

import (
	"testing"
	"time"
)

func TestParseRecent(t *testing.T) {
	for _, tt := range []struct {
		line, addr string
		age        time.Duration
		bad        bool
	}{
		{line: "src=192.0.2.1 ttl: 0 last_seen: 750 oldest_pkt: 1 750", addr: "192.0.2.1", age: time.Second},
		{line: "src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 4294967296 oldest_pkt: 2 1, 4294967296", addr: "2001:db8::1", age: 4 * time.Second},
		{line: "src=192.0.2.1 ttl: 0 last_seen: 4294967046 oldest_pkt: 1 4294967046", addr: "192.0.2.1", age: 5 * time.Second}, // before the count overflowed
		{line: "src=192.0.2.1 ttl: 0 last_seen: 1100 oldest_pkt: 1 1100", addr: "192.0.2.1"},                                   // the clock is off
		{line: "src=192.0.2.1 ttl: 0 last_seen: 3000000000 oldest_pkt: 1 3000000000", addr: "192.0.2.1", age: 1294968296 * 4 * time.Millisecond},
		{line: "src=192.0.2.1 ttl: 0", bad: true},
		{line: "src=host ttl: 0 last_seen: 1 oldest_pkt: 1 1", bad: true},
		{line: "src=192.0.2.1 ttl: 0 last_seen: x oldest_pkt: 1 1", bad: true},
	} {
		r, err := parseRecent(tt.line, 4*time.Millisecond, 1000)
		if tt.bad != (err != nil) || !tt.bad && (r.Addr.String() != tt.addr || r.Age != tt.age) {
			t.Errorf("%s: %v %v, %v; want %s %v", tt.line, r.Addr, r.Age, err, tt.addr, tt.age)
		}
	}
}
