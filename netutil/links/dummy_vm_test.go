//go:build vm

package links

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func openDummy(t *testing.T) *Dummy {
	t.Helper()
	netnstest.Enter(t)
	d, err := OpenDummy()
	fatal.If(t, err)
	t.Cleanup(d.Close)
	return d
}

func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

func wantAddrs(t *testing.T, d *Dummy, v6 bool, want ...string) {
	t.Helper()
	list, err := d.Addrs(v6)
	fatal.If(t, err)
	var got []string
	for _, a := range list {
		got = append(got, a.String())
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("addresses are %v, want %v", got, want)
	}
}

func TestDummyHoldsAddresses(t *testing.T) {
	d := openDummy(t)
	if there, err := d.Find(); there || err != nil {
		t.Fatalf("there before it was made: %v, %v", there, err)
	}
	fatal.If(t, d.Remove())
	wantAddrs(t, d, false)
	fatal.If(t, d.Probe())
	if links := ip(t, "-o link"); strings.Count(links, "\n") != 1 {
		t.Errorf("a probe left devices:\n%s", links)
	}
	fatal.If(t, d.Make())
	fatal.If(t, d.Make())
	for _, a := range []string{"10.96.0.10", "10.96.0.11", "fd00:96::10", "fd00:96::10"} {
		fatal.If(t, d.Bind(netip.MustParseAddr(a)))
	}
	wantAddrs(t, d, false, "10.96.0.10", "10.96.0.11")
	wantAddrs(t, d, true, "fd00:96::10")
	shown := ip(t, "addr show dev svcproxy0")
	for _, want := range []string{"NOARP", "state DOWN", "inet 10.96.0.10/32", "inet6 fd00:96::10/128", "deprecated"} {
		if !strings.Contains(shown, want) {
			t.Errorf("ip does not show %q:\n%s", want, shown)
		}
	}
	// Down as the device is, its addresses are this host's.
	for _, args := range []string{"route get 10.96.0.10", "route get fd00:96::10"} {
		if out := ip(t, args); !strings.HasPrefix(out, "local ") {
			t.Errorf("ip %s: %s", args, out)
		}
	}
	fatal.If(t, d.Unbind(netip.MustParseAddr("10.96.0.10")))
	fatal.If(t, d.Unbind(netip.MustParseAddr("10.96.0.10")))
	fatal.If(t, d.Unbind(netip.MustParseAddr("fd00:96::10")))
	wantAddrs(t, d, false, "10.96.0.11")
	wantAddrs(t, d, true)
	fatal.If(t, d.Remove())
	if there, err := d.Find(); there || err != nil {
		t.Errorf("there after it was removed: %v, %v", there, err)
	}
}

// Who removes the device takes our knowledge of it too.
func TestDummyIsFoundAgain(t *testing.T) {
	d := openDummy(t)
	fatal.If(t, d.Make())
	ip(t, "link del svcproxy0")
	if err := d.Bind(netip.MustParseAddr("10.96.0.10")); err == nil {
		t.Error("no error without the device")
	}
	fatal.If(t, d.Make())
	fatal.If(t, d.Bind(netip.MustParseAddr("10.96.0.10")))
	wantAddrs(t, d, false, "10.96.0.10")
}

func TestADeviceOfAnotherTypeStays(t *testing.T) {
	d := openDummy(t)
	ip(t, "link add svcproxy0 type bridge")
	if err := d.Make(); err == nil || !strings.Contains(err.Error(), "type bridge") {
		t.Errorf("Make gave %v", err)
	}
	if err := d.Remove(); err == nil {
		t.Error("Remove gave no error")
	}
	ip(t, "link show svcproxy0")
}
