package report

import (
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Every cause has a word of its own, and a text for people.
func TestWithheldWords(t *testing.T) {
	words := map[string]bool{policy.NotWithheld.String(): true}
	for _, w := range policy.AllWithheld() {
		if words[w.String()] {
			t.Errorf("cause %d has the word %q of another", w, w)
		}
		words[w.String()] = true
		switch w {
		case policy.NoMeans, policy.NoRouter, policy.NotCarried, policy.KernelLacksIt, policy.NoEndpoints, policy.NoUsable, policy.WantedUnusable, policy.AllFail: // more is said of these
		default:
			if withheldWords[w] == "" {
				t.Errorf("%s has no text", w)
			}
		}
	}
	if fmt.Sprint(source.BGP|source.L2) != "bgp,l2" {
		t.Error(source.BGP | source.L2)
	}
}
