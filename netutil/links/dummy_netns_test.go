//go:build netns

package links

import (
	"os"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// Probe says of any kernel whether a dummy device can be made.
func TestProbeReportsWhetherThereAreDummyDevices(t *testing.T) {
	netnstest.Enter(t)
	d, err := OpenDummy()
	fatal.If(t, err)
	defer d.Close()
	probed, made := d.Probe(), d.Make()
	if (probed == nil) != (made == nil) {
		t.Errorf("Probe gave %v, Make gave %v; %s", probed, made, os.Args[0])
	}
}
