package report

import (
	"testing"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Every word of Status has a count of its own.
func TestCountsKnowAllActions(t *testing.T) {
	f := &policy.Frontend{Outside: policy.Route{Pool: &policy.Pool{}}}
	words := []string{policy.Balance.String(), policy.Reject.String(), policy.Drop.String(), "pending"}
	for _, whole := range []bool{true, false} {
		word, _ := kernelAction(f, &proxier.PartialError{Frontends: map[policy.FrontendKey]bool{f.Key: whole}})
		words = append(words, word)
	}
	for _, w := range words {
		if _, known := worse[w]; !known {
			t.Errorf("%q is not among %q", w, ServiceActions())
		}
	}
}
