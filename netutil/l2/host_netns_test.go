//go:build netns

package l2

import (
	"os/exec"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func ip(t *testing.T, lines ...string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v\n%s", err, out)
	}
}

// read returns the devices of the host by name.
func read(t *testing.T) map[string]*device {
	t.Helper()
	h, err := readHost()
	fatal.If(t, err)
	byName := map[string]*device{}
	for _, d := range h.devices {
		byName[d.name] = d
	}
	return byName
}

// Which links have neighbours, and how often each came up.
func TestReadHost(t *testing.T) {
	netnstest.Enter(t)
	ip(t, "link add eth0 type veth peer name port0", "link add br0 type bridge", "link set port0 master br0",
		"link add noarp type bridge", "link set noarp arp off")
	for name, want := range map[string]bool{"lo": false, "eth0": true, "br0": true, "noarp": false} {
		d := read(t)[name]
		if d.ethernet != want || d.up || (name != "lo") != (len(d.mac) == macLen && d.mac != strings.Repeat("\x00", macLen)) {
			t.Errorf("%s: %+v, want Ethernet: %v", name, d, want)
		}
	}
	ip(t, "link set port0 up", "link set eth0 up")
	before := read(t)["eth0"]
	ip(t, "link set port0 down", "link set port0 up")
	if after := read(t)["eth0"]; !before.up || before.ups == 0 || after.ups != before.ups+1 {
		t.Errorf("up %v and came up %d times, then %d times", before.up, before.ups, after.ups)
	}
	ip(t, "link set port0 down")
	if d := read(t)["eth0"]; !d.up || d.carrier {
		t.Errorf("without a carrier: %+v", d)
	}
}
