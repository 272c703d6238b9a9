package source_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source/sourcetest"
)

// A service that differs in anything but its places, the file of its endpoints and what people are told is another one: what Equal
// passes over never reaches the kernel.
func TestServiceEqual(t *testing.T) {
	same := sourcetest.Filled()
	if !same.Equal(sourcetest.Filled()) {
		t.Error("a service does not equal itself")
	}
	for path, other := range sourcetest.Changes() {
		place := strings.HasPrefix(path, ".Pos.") || strings.HasPrefix(path, ".Places") || path == ".EndpointsFrom" || strings.HasPrefix(path, ".WrittenPorts") || strings.HasPrefix(path, ".Inherited")
		notes := path == ".Description" || strings.HasPrefix(path, ".Labels")
		if got := same.Equal(other); got != (place || notes) {
			t.Errorf("with another %s: Equal is %v", path, got)
		}
		if got := same.SameNotes(other); got == notes {
			t.Errorf("with another %s: SameNotes is %v", path, got)
		}
	}
}
