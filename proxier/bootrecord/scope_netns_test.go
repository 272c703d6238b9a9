//go:build netns

package bootrecord

import (
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// A network namespace has a place of its own, also in the place of one that has gone.
func TestEachNamespaceIsAnotherPlace(t *testing.T) {
	seen := map[Scope]bool{}
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			netnstest.Enter(t)
			where, err := Here()
			if err != nil || seen[where] {
				t.Errorf("%q, %v, seen %v", where, err, seen)
			}
			seen[where] = true
		})
	}
}
