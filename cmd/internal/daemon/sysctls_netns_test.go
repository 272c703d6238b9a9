//go:build netns

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"svcproxy/configs"
	"svcproxy/netutil/netnstest"
	"svcproxy/netutil/sysctl"
)

// A setting that turns wrong while the daemon runs is warned of once, and again
// after it was right.
func TestSysctlsThatTurnWrong(t *testing.T) {
	netnstest.Enter(t)
	var log bytes.Buffer
	d := &daemon{kernel: &activeMode{Mode: stub("ipvs", nil)}, settings: configs.Default(), log: slog.New(slog.NewTextHandler(&log, nil))}
	d.settings.Families = []string{"ipv4"}
	for i, step := range []struct {
		value string
		want  int // warnings so far
	}{{"1", 0}, {"0", 1}, {"0", 1}, {"1", 1}, {"0", 2}} {
		if err := sysctl.Set("net/ipv4/ip_forward", step.value); err != nil {
			t.Fatal(err)
		}
		d.warnOfSysctls()
		if n := strings.Count(log.String(), "IPv4 forwarding is off"); n != step.want {
			t.Fatalf("step %d, ip_forward=%s: %d warnings, want %d:\n%s", i, step.value, n, step.want, log.String())
		}
	}
}
