package policy_test

import (
	"testing"

	"svcproxy.dev/svcproxy/internal/structtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A node that differs in anything is another one: what Equal passes over never reaches the rules.
func TestNodeEqual(t *testing.T) {
	same := structtest.Filled[policy.Node]()
	if !same.Equal(structtest.Filled[policy.Node]()) {
		t.Error("a node does not equal itself")
	}
	for path, other := range structtest.Changes[policy.Node]() {
		if same.Equal(other) {
			t.Errorf("with another %s: they are equal", path)
		}
	}
}
