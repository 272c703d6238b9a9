package remote

import "testing"

func TestWhatSetLeaves(t *testing.T) {
	s := Set{Unknown: []string{"https://a/svc/", "https://b/web.toml"}}
	for name, want := range map[string]bool{
		"https://a/svc/web.toml":     true,
		"https://a/svc/sub/web.toml": true,
		"https://a/svc2/web.toml":    false,
		"https://b/web.toml":         true,
		"https://b/web.toml2":        false,
		"etcd:/svc/web.toml":         false,
	} {
		if got := s.Leaves(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if partial := (&Set{Partial: true}); !partial.Leaves("https://a/web.toml") {
		t.Error("a partial set without unknown names does not leave a name")
	}
	if whole := (&Set{}); whole.Leaves("https://a/web.toml") {
		t.Error("a complete set leaves a name")
	}
}

func TestBelow(t *testing.T) {
	for _, test := range []struct {
		name, answer string
		want         bool
	}{
		{"https://a/team/web.toml", "https://a/team/index.json", true},
		{"https://a/team/sub/web.toml", "https://a/team/index.json", true},
		{"https://a/team2/web.toml", "https://a/team/index.json", false},
		{"https://b/team/web.toml", "https://a/team/index.json", false},
		{"https://a/team/web.toml", "http", true},
	} {
		if got := Below(test.name, test.answer); got != test.want {
			t.Errorf("%s, %s: %v, want %v", test.name, test.answer, got, test.want)
		}
	}
}
