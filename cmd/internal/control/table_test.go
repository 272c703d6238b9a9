package control

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/report"
)

func TestWriteTable(t *testing.T) {
	want := `
svcproxy 1.0, pid 7, ready, up 1d2h
iptables mode on node host1 in zone a; node ports on 192.0.2.1, 2001:db8::1

FAMILY  LAST SYNC  TOOK    STATE
ipv4    3s ago     12.3ms  not served: service default/web:http: no such scheduler
ipv6    never      -       failing for 1m0s: iptables-restore: line 2\nfailed

FILE                         STATE     SINCE  SERVICES
/etc/svcproxy/a.toml         accepted  1m30s  2
/etc/svcproxy/\x1b[2Jb.toml  stale     1h0m   1
d.toml                       refused   0s     1

SERVICE       ADDRESS              KIND       ACTION   TARGETS  ENDPOINTS  FROM
default/web   10.96.0.10:80/tcp    vip        balance  1        2          /etc/svcproxy/a.toml
default/web   node-port:30080/tcp  node-port  drop     0        2          /etc/svcproxy/a.toml  (policy local: no endpoint on this node; usable elsewhere: 1)
default/idle  -                    -          -        -        0          /etc/svcproxy/a.toml

SERVICE      ENDPOINT            STATE     WEIGHT  WHERE
default/web  192.168.10.11:8080  ready     1       local
default/web  192.168.10.12:8080  weight 0  0       remote

FAULTS
"\x1b[2Jb.toml":2:1: unknown key "x"
d.toml:1:1: taken

WARNINGS
IPv4 forwarding is off
c.toml:3:1: warning: no address
service default/web: 10.96.0.10 is on eth0

NEEDS A RESTART
mode
`
	var b strings.Builder
	fatal.If(t, sample.WriteTable(&b, now))
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// Labels have a column where there are any, and it does not grow with them.
func TestLabelsInTable(t *testing.T) {
	web := sample.Loop.Services[0]
	web.Labels = map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
	var b strings.Builder
	tab := newTable(&b, now)
	tab.services([]report.ServiceStatus{web, sample.Loop.Services[1]})
	fatal.If(t, tab.end())
	want := `
SERVICE       ADDRESS              KIND       ACTION   TARGETS  ENDPOINTS  LABELS                  FROM
default/web   10.96.0.10:80/tcp    vip        balance  1        2          a=1 b=2 c=3 and 2 more  /etc/svcproxy/a.toml
default/web   node-port:30080/tcp  node-port  drop     0        2          a=1 b=2 c=3 and 2 more  /etc/svcproxy/a.toml  (policy local: no endpoint on this node; usable elsewhere: 1)
default/idle  -                    -          -        -        0          -                       /etc/svcproxy/a.toml
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestAge(t *testing.T) {
	tests := []struct {
		ago  time.Duration
		want string
	}{
		{-time.Second, "0s"},
		{1500 * time.Millisecond, "1s"},
		{time.Hour - 1, "59m59s"},
		{25*time.Hour - 1, "1d0h"},
		{24*time.Hour - 1, "23h59m"},
	}
	for _, tt := range tests {
		if got := Age(now, now.Add(-tt.ago)); got != tt.want {
			t.Errorf("Age of %v = %s, want %s", tt.ago, got, tt.want)
		}
	}
	if got := Age(now, time.Time{}); got != "-" {
		t.Errorf("Age of never = %s, want -", got)
	}
}
