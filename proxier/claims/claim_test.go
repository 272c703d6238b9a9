package claims

import (
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A clash is told where the name, the address or the node port stands, of both.
func TestClashPointsAtWhatClashes(t *testing.T) {
	at := func(file string, line int) []source.Position { // name, address or node port
		return []source.Position{{File: file, Line: line, Col: 8}, {File: file, Line: line + 1, Col: 9}}
	}
	place := func(u source.Unit) source.Unit {
		for _, s := range u.Services {
			s.SetPlaces(s.Pos, at(u.ID.Name, s.Pos.Line+1))
		}
		return u
	}
	tests := []struct{ first, second, want string }{
		{"x 10.96.0.1:80", "x 10.96.0.2:80", `b:2:8: service "default/x" is already defined (a:2:8)`},
		{"x 10.96.0.1:80", "y 10.96.0.1:80", `b:3:9: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:3:9)`},
		{"x 30080", "y 30080", `b:3:9: service "default/y": node port 30080/tcp is taken by "default/x" (a:3:9)`},
	}
	for _, tt := range tests {
		tr := NewTracker(nil)
		tr.Apply(policytest.Set(place(policytest.File("a", tt.first)), place(policytest.File("b", tt.second))))
		if got := tr.Refusals()[0].Faults[0].String(); got != tt.want {
			t.Errorf("\n got: %s\nwant: %s", got, tt.want)
		}
	}
}
