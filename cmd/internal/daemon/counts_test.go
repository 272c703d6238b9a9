package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestStatusText(t *testing.T) {
	tests := []struct {
		name string
		in   healthz.Counts
		want string
	}{
		{"nothing", healthz.Counts{}, "0 services, no problems"},
		{"well", healthz.Counts{Loop: report.Counts{Services: map[string]int{"balance": 1, "drop": 1}}}, "2 services, no problems"},
		{"one", healthz.Counts{Loop: report.Counts{Services: map[string]int{"reject": 1}}, Held: 1}, "1 service, 1 service refuses, 1 change is held"},
		{"checks and drains", healthz.Counts{
			Loop:   report.Counts{Services: map[string]int{"balance": 1, "disabled": 1}, AllFailed: map[string]int{"use_all": 1, "refuse": 1}},
			Drains: map[string]int{healthz.DrainedNode: 1, healthz.DrainedEndpoints: 3},
		}, "2 services, 1 service uses endpoints that all fail their check, 1 drain of this host"},
		{"all", healthz.Counts{
			Loop:  report.Counts{Services: map[string]int{"balance": 10, "reject": 2, "unserved": 3, "in part": 4, "pending": 5}},
			Files: map[source.FileState]int{source.Accepted: 7, source.Refused: 8, source.Stale: 9}, SettingsFaults: 2,
		}, "24 services, 3 services cannot be made, 2 services refuse, 4 services are served in part, 5 services are not synced yet, " +
			"8 files are refused, 9 files are stale, 2 faults in svcproxy.toml"},
	}
	for _, tt := range tests {
		if got := text(tt.in); got != tt.want {
			t.Errorf("%s\n got: %s\nwant: %s", tt.name, got, tt.want)
		}
	}
}

// Systemd is told the mode at once, counts when they are known, and nothing twice.
func TestStatusLine(t *testing.T) {
	var told []string
	l := &statusLine{notify: func(s string) { told = append(told, s) }}
	l.setMode("ipvs mode")
	l.setCounts("1 service")
	l.setCounts("1 service")
	l.setMode("ipvs mode; nftables mode is leaving")
	if got, want := strings.Join(told, "|"), "STATUS=ipvs mode|STATUS=ipvs mode; 1 service|STATUS=ipvs mode; nftables mode is leaving; 1 service"; got != want {
		t.Errorf("got:  %s\nwant: %s", got, want)
	}
}

// What systemctl status shows follows what becomes of files.
func TestStatusLineFollows(t *testing.T) {
	was := statusInterval
	t.Cleanup(func() { statusInterval = was }) // after the daemon has ended
	statusInterval = 10 * time.Millisecond
	r := launch(t, "mode = 'iptables'\n")
	shows := func(text string) {
		t.Helper()
		r.eventually("shows "+text, func() bool {
			lines := strings.Split(strings.TrimSpace(r.toldBut("WATCHDOG=", "READY=")), "\n")
			return lines[len(lines)-1] == "STATUS=iptables mode; "+text
		})
	}
	shows("1 service, 1 service refuses")
	r.write("bad.toml", "[[service]]\n")
	shows("1 service, 1 service refuses, 1 file is refused")
	r.write("web.toml", "[[services]]\n")
	shows("1 service, 1 service refuses, 1 file is refused, 1 file is stale")
}

// A failed sync has kube-proxy's name of what failed.
func TestFailuresHaveKubeProxyNames(t *testing.T) {
	none := errors.New("no")
	for _, tt := range []struct {
		m    modes.Mode
		want string
	}{{modes.Mode{CountedAs: healthz.NftablesSync}, healthz.NftablesSync}, {modes.Mode{}, ""}} {
		if got := failureOf(tt.m, none); got != tt.want {
			t.Errorf("a mode counted as %q: %q, want %q", tt.m.CountedAs, got, tt.want)
		}
	}
}
