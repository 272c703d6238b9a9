package looks

import "testing"

func objects(keys ...string) *Objects[string] {
	o := &Objects[string]{}
	for _, k := range keys {
		o.Add(k)
	}
	return o
}

// What a sync changes at any time between the beginning of a look and its end means nothing to the look.
func TestLookBesideSync(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(*Guard[string]) // the look
		during func(*Guard[string])
		a, b   bool // whether they mean nothing
	}{
		{"none", func(g *Guard[string]) {}, func(g *Guard[string]) {}, false, false},
		{"ended before", func(g *Guard[string]) { g.Begin(objects("a")); g.Writing = nil }, func(g *Guard[string]) {}, false, false},
		{"under way", func(g *Guard[string]) { g.Begin(objects("a")) }, func(g *Guard[string]) { g.Writing = nil }, true, false},
		{"begins", func(g *Guard[string]) {}, func(g *Guard[string]) { g.Begin(objects("a")) }, true, false},
		{"one after another", func(g *Guard[string]) { g.Begin(objects("a")) }, func(g *Guard[string]) { g.Begin(objects("b")) }, true, true},
		{"failed", func(g *Guard[string]) { g.Begin(objects("a")) }, func(g *Guard[string]) { g.Forget() }, true, true},
		{"of all", func(g *Guard[string]) {}, func(g *Guard[string]) { g.Begin(&Objects[string]{All: true}) }, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var g Guard[string]
			tt.before(&g)
			look := g.BeginLook()
			tt.during(&g)
			g.EndLook(look)
			g.Begin(objects("a", "b", "c")) // after the look
			if a, b := look.Has("a"), look.Has("b"); a != tt.a || b != tt.b {
				t.Errorf("a: %v, b: %v; want %v, %v", a, b, tt.a, tt.b)
			}
			if look.Has("c") && !look.All {
				t.Error("a look goes on after its end")
			}
		})
	}
}
