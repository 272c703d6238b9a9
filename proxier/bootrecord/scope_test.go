package bootrecord

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// One goes with one boot: asking twice gives the same.
func TestPlaceIsTheSameAgain(t *testing.T) {
	first, err := Here()
	fatal.If(t, err)
	if again, err := Here(); err != nil || again != first || len(strings.Fields(string(first))) < 5 {
		t.Errorf("%q, then %q, %v", first, again, err)
	}
}
