package source

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/structtest"
)

// A service that differs in anything but its places is another one: what Equal
// passes over never reaches the kernel.
func TestServiceEqual(t *testing.T) {
	same := structtest.Filled[Service]()
	if !same.Equal(structtest.Filled[Service]()) {
		t.Error("a service does not equal itself")
	}
	for path, other := range structtest.Changes[Service]() {
		place := strings.HasPrefix(path, ".Pos.") || strings.HasPrefix(path, ".Places")
		if got := same.Equal(other); got != place {
			t.Errorf("with another %s: Equal is %v, want %v", path, got, place)
		}
	}
}
