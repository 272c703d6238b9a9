//go:build vm

package vmtests

import (
	"strconv"
	"strings"
	"testing"
)

// heldConnections is how many connections are held to each address of the service.
const heldConnections = 500

// testDrain: an endpoint that is drained gets no new connection, over a restart of the unit and
// another version of the file, and loses none; drain --wait ends when its last one has.
func (s *site) testDrain(t *testing.T) {
	held := begin(t, s.client, "holding", "peer", "hold", strconv.Itoa(heldConnections), vip4, vip6)
	s.must(t, "svcproxy", "drain", "192.168.7.4", "--reason", "new disk")
	wait := begin(t, s.node, "left: ", "sh", "-c", "svcproxy drain fd07::4 --reason 'new disk' --wait && echo ended")
	s.reaches(t, "one")
	s.must(t, "systemctl", "restart", "svcproxy")
	s.reaches(t, "one")
	s.follow(t, "# another version\n"+string(bothBackends), "one")
	s.reaches(t, "one")
	r := readReport(t, held.end(), "holding")
	if len(r.Lost) > 0 || r.New != 2*heldConnections || r.Echoes < r.New {
		t.Errorf("%d connections, %d echoes, lost: %q", r.New, r.Echoes, r.Lost)
	}
	if out := wait.wait(t); !strings.HasSuffix(out, "\nended\n") {
		t.Fatalf("drain --wait failed:\n%s", out)
	}
	s.must(t, "svcproxy", "undrain", "192.168.7.4")
	s.must(t, "svcproxy", "undrain", "fd07::4")
	s.reaches(t, "one", "two")
}
