//go:build netns

package healthcheck

import (
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/source"
)

// TestExecOnDeadDisk has a program on a file system that does not answer: that holds up nothing but its check.
func TestExecOnDeadDisk(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	dir := t.TempDir()
	answer := disktest.Dead(t, dir)
	check := source.HealthCheck{Type: source.CheckExec, Command: []string{filepath.Join(dir, "check")}, Timeout: 100 * time.Millisecond}
	want(t, "of a dead disk", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), check), "not asked: "+errUnbegun.Error())
	runtime.GC()
	want(t, "beside it", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), shell("exit 3")), "exit code 3")
	answer()
}
