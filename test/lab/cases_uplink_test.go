//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// behindGateway returns an address that gateway answers for.
func behindGateway(i int) Dual {
	v6 := [16]byte{0: 0xfd, 3: 0xc8, 14: byte(i >> 8), 15: byte(i)}
	return Dual{netip.AddrFrom4([4]byte{10, 200, byte(i / 200), byte(1 + i%200)}), netip.AddrFrom16(v6)}
}

// testUplinkLost: with the link all endpoints are lost, one by one, and then used all the same.
// When the link is back so is traffic, and the kernel is told nothing more.
func testUplinkLost(t *testing.T, e *env) {
	var endpoints []Endpoint
	for i := range soak(100, 1000) {
		for _, a := range behindGateway(i).Each() {
			endpoints = append(endpoints, Endpoint{Address: a})
		}
	}
	s := e.service(endpoints...)
	s.HealthCheck = tcpCheck()
	timeout := max(checkTimeout, min(pace.Scale(2*time.Second), 8*time.Second)) // in which all are asked, also on a busy machine
	s.HealthCheck["timeout"] = timeout.String()
	e.apply(t, s)
	e.expectTargets(t, "at first", len(endpoints)/2)
	up := []check{{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}, want: untouched}} // by gateway, which has all addresses
	e.expect(t, up...)
	if _, err := e.Gateway.Run("nft", "add table inet dead; add chain inet dead in { type filter hook input priority 0; policy drop; }"); err != nil {
		t.Fatal(err)
	}
	err := pace.Poll(patienceFor(timeout), func() error {
		states, _, err := e.endpointStates()
		for a, state := range states {
			if err == nil && !strings.EqualFold(state, "down") {
				err = fmt.Errorf("%s is %s", a, state)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e.expectTargets(t, "all are down, and used", len(endpoints)/2)
	before := e.syncTimes(t)
	if _, err := e.Gateway.Run("nft", "delete", "table", "inet", "dead"); err != nil {
		t.Fatal(err)
	}
	if got := Ask(up[0].questions()[0]); got.Outcome != Untouched {
		t.Errorf("the link is back: %s", got)
	}
	e.expectTargets(t, "all are back", len(endpoints)/2)
	err = pace.Poll(patienceFor(timeout), func() error {
		states, _, err := e.endpointStates()
		for a, state := range states {
			if err == nil && state != "up" {
				err = fmt.Errorf("%s is %s", a, state)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if now := e.syncTimes(t); now != before {
		t.Errorf("the link is back: syncs at %s, the last before at %s", now, before)
	}
}

// syncTimes returns when each family was last synced.
func (e *env) syncTimes(t *testing.T) string {
	t.Helper()
	out, err := e.daemon.Command("status", "-o", "json", e.name())
	if err != nil {
		t.Fatal(err)
	}
	var st struct {
		Loop struct {
			Families []struct {
				LastSync time.Time `json:"last_sync"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil || len(st.Loop.Families) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	return fmt.Sprint(st.Loop.Families)
}
