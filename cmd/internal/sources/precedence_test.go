package sources

import (
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/configs"
)

// No two sources have the same precedence, which is theirs wherever they stand.
func TestPrecedencesAreDistinct(t *testing.T) {
	of := make(map[int]string)
	for _, s := range Types {
		if other, taken := of[s.Precedence]; taken || s.Precedence <= 0 {
			t.Errorf("%s has precedence %d, as %q", s.Name, s.Precedence, other)
		}
		of[s.Precedence] = s.Name
	}
	old := Types
	t.Cleanup(func() { Types = old })
	Types = []Type{{Name: "c", Precedence: 3}, {Name: "a", Precedence: 1}, {Name: "b", Precedence: 2}}
	var names []string
	for _, s := range Asked(configs.Settings{Sources: []string{"b", "c", "a"}}) {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("asked for in the order %v", names)
	}
}
