package nftables

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A flow table that is refused by every repair is told of once, and again after it was taken.
func TestRefusedFlowTableIsReportedOnce(t *testing.T) {
	var log bytes.Buffer
	var s flowtableState
	s.init(policy.IPv4, Options{Flowtable: []string{"nosuch0"}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	refuse := func() {
		s.links = map[string]int{}
		s.failed(errors.New("no such device"))
	}
	want := func(warnings int, now string) {
		t.Helper()
		if got := strings.Count(log.String(), "no such device"); got != warnings || !strings.Contains(s.warning, now) || (now == "") != (s.warning == "") {
			t.Errorf("%d warnings, now %q; want %d, now %q:\n%s", got, s.warning, warnings, now, log.String())
		}
	}
	for range 3 {
		refuse()
	}
	want(1, "no such device")
	s.holds(nil, "")
	want(1, "no such device")
	s.holds(&nft.Flowtable{}, "")
	want(1, "")
	refuse()
	want(2, "no such device")
}
