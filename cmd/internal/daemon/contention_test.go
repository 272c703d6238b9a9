package daemon

import (
	"context"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/proxier"
)

// A disturbed kernel tells of changes by others.
type disturbed struct {
	*kernel
	events chan proxier.ForeignChange
}

func (k disturbed) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-k.events:
			changed(e)
		}
	}
}

// Who changes our table again and again is told once, shown by status, and not
// answered by as many comparisons. Events that were lost say nothing of anybody.
func TestContentionIsShown(t *testing.T) {
	k := disturbed{new(kernel), make(chan proxier.ForeignChange)}
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\nfamilies = [\"ipv4\"]\n", modestest.Stub("nftables", modestest.Opens(k)))
	r.ready()
	const events = 50
	send := func(e proxier.ForeignChange) {
		for range events {
			k.events <- e
		}
	}
	send(proxier.ForeignChange{Lost: true})
	if st := r.status(); len(st.Warnings) > 0 && strings.Contains(strings.Join(st.Warnings, "\n"), "changes what svcproxy has") {
		t.Errorf("events that were lost are shown as a contention: %q", st.Warnings)
	}
	send(proxier.ForeignChange{PID: 7, Process: "rival"})
	const want = "ipv4: process 7 (rival) changes what svcproxy has in the kernel: "
	if st := r.status(); !strings.Contains(strings.Join(st.Warnings, "\n"), want) {
		t.Errorf("status warns of %q, want %q", st.Warnings, want)
	}
	log := r.said()
	for line, want := range map[string]int{
		"another program keeps changing our table":        1,
		"kernel events are lost repeatedly":               1,
		"another program changed our table; repairing it": 10,
		"kernel events were lost":                         10,
	} {
		if n := strings.Count(log, line); n != want {
			t.Errorf("the log says %d times %q, want %d", n, line, want)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls >= events {
		t.Errorf("%d repairs and looks after %d events", k.calls, 2*events)
	}
}
