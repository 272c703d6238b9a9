package explain

import (
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// The first step says whether the network is told of the address that is asked about.
func TestFirstStepIsTheAnnouncement(t *testing.T) {
	w := world(service())
	w.Announced = []report.AnnouncedAddress{
		{Address: addr("198.51.100.7"), Means: "bgp", Announced: true},
		{Address: addr("198.51.100.7"), Means: "l2", Reason: "no link of this host answers for it"},
		{Address: addr("198.51.100.8"), Means: "bgp", Reason: "no endpoints"},
	}
	for dst, want := range map[string]string{
		"198.51.100.7": "announced by bgp; NOT announced by l2: no link of this host answers for it",
		"198.51.100.8": "NOT announced by bgp: no endpoints",
		"10.96.0.10":   "",
	} {
		for _, port := range []uint16{80, 81, 0} {
			q := Question{Source: addr(client), Dest: addr(dst), Port: port}
			if port != 0 {
				q.Protocol = source.TCP
			}
			r, err := Explain(t.Context(), w, q, &fakeHost{sysctls: map[string]string{}})
			fatal.If(t, err)
			lines := slices.DeleteFunc(slices.Clone(r.Steps[0].Lines), func(l string) bool { return !strings.Contains(l, "announced by") })
			if got := strings.Join(lines, "; "); got != want {
				t.Errorf("%s:%d: %q, want %q", dst, port, got, want)
			}
		}
	}
}
