//go:build netns

package modeswitch

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/sysctl"
)

// A setting that turns wrong while the daemon runs is warned of once, and again
// after it was right.
func TestSysctlsThatTurnWrong(t *testing.T) {
	netnstest.Enter(t)
	var log bytes.Buffer
	settings := configs.Default()
	settings.Families = []string{"ipv4"}
	sw := &Switch{active: &Active{Mode: modestest.Stub("ipvs", nil)}, Config: Config{
		Settings: func() configs.Settings { return settings }, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}}
	for i, step := range []struct {
		value string
		want  int // warnings so far
	}{{"1", 0}, {"0", 1}, {"0", 1}, {"1", 1}, {"0", 2}} {
		fatal.If(t, sysctl.Set("net/ipv4/ip_forward", step.value))
		sw.warnOfSysctls()
		if n := strings.Count(log.String(), "IPv4 forwarding is off"); n != step.want {
			t.Fatalf("step %d, ip_forward=%s: %d warnings, want %d:\n%s", i, step.value, n, step.want, log.String())
		}
	}
}
