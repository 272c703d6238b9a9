package proxier

import (
	"testing"

	"svcproxy.dev/svcproxy/internal/structtest"
)

// A node that differs in anything is another one: what Equal passes over never reaches the rules.
func TestNodeEqual(t *testing.T) {
	same := structtest.Filled[Node]()
	if !same.Equal(structtest.Filled[Node]()) {
		t.Error("a node does not equal itself")
	}
	for path, other := range structtest.Changes[Node]() {
		if same.Equal(other) {
			t.Errorf("with another %s: they are equal", path)
		}
	}
}
