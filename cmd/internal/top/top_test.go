package top

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/traffic"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestWrite(t *testing.T) {
	r := traffic.Report{
		Time: now, Since: now.Add(-90 * time.Second), Over: 2, Packets: true, Lost: 3, Problems: []string{"ipv6: \x1b[2J refused"},
		Services: []traffic.Service{{
			Namespace: "default", Name: "web\x1b[2J",
			Figures:   traffic.Figures{Active: 41, Connections: 123_456, ConnectionRate: 140.4, Packets: 10_000_000, Bytes: 9_999, PacketRate: 0.5, ByteRate: 12_345_678},
			Endpoints: []traffic.Endpoint{{Address: netip.MustParseAddrPort("[fd00::11]:8080"), Gone: true, Figures: traffic.Figures{Active: 7}}},
			More:      2,
		}},
		More: 5,
	}
	want := `03:04:05, counting for 1m30s
connections came faster than they were counted, 3 times: there were more
ipv6: \x1b[2J refused
SERVICE                   CONN/S  ACTIVE  CONNS  PACKETS/S  BYTES/S  PACKETS  BYTES
default/web\x1b[2J        140     41      123k   0.5        12M      10M      9999
  [fd00::11]:8080 (gone)  0       7       0      0          0        0        0
  and 2 more endpoints
and 5 more services
`
	compare(t, &r, 0, want)
	compare(t, &r, 1, want[:strings.Index(want, "\n")+1])
}

// What is not known is not shown as 0.
func TestWriteUnknown(t *testing.T) {
	r := traffic.Report{Time: now, Since: now, Services: []traffic.Service{{Namespace: "default", Name: "web", Figures: traffic.Figures{Active: 1}}}}
	compare(t, &r, 0, `03:04:05, counting for 0s; packets are not counted: net.netfilter.nf_conntrack_acct is 0
SERVICE      CONN/S  ACTIVE  CONNS  PACKETS/S  BYTES/S  PACKETS  BYTES
default/web  -       1       0      -          -        -        -
`)
}

func compare(t *testing.T, r *traffic.Report, lines int, want string) {
	t.Helper()
	var b strings.Builder
	fatal.If(t, Write(&b, r, lines))
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestShortNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 9_999: "9999", 10_000: "10k", 999_400: "999k", 1_250_000: "1.2M", 18e18: "18E"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
}

// What a client asks is what the daemon is asked.
func TestQueryCrossesTheSocket(t *testing.T) {
	q := traffic.Query{Names: []string{"web", "prod/*"}, Endpoints: true, Sort: "bytes", Limit: 7}
	got, err := QueryOf(Values(q))
	if diff := cmp.Diff(q, got); diff != "" || err != nil {
		t.Errorf("error %v, -sent +received:\n%s", err, diff)
	}
	if _, err := QueryOf(map[string][]string{"limit": {"\x1b"}}); err == nil {
		t.Error("a limit that is no number is accepted")
	}
}
