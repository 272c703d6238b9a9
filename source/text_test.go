package source_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

func TestNames(t *testing.T) {
	tests := []struct {
		in                     string
		label, name, scheduler bool
	}{
		{"", false, false, false},
		{"web", true, true, true},
		{"0", true, true, true},
		{"a-b", true, true, false},
		{"a.b_c", false, true, false},
		{"Web", false, true, false},
		{"-a", false, false, false},
		{"a-", false, false, false},
		{".", false, false, false},
		{"a b", false, false, false},
		{"ä", false, false, false},
		{"a\n", false, false, false},
		{strings.Repeat("a", 15), true, true, true},
		{strings.Repeat("a", 16), true, true, false},
		{strings.Repeat("a", 63), true, true, false},
		{strings.Repeat("a", 64), false, true, false},
		{strings.Repeat("a", 253), false, true, false},
		{strings.Repeat("a", 254), false, false, false},
	}
	for _, tt := range tests {
		if l, n, s := source.IsLabel(tt.in), source.IsName(tt.in), source.IsScheduler(tt.in); l != tt.label || n != tt.name || s != tt.scheduler {
			t.Errorf("%q: label %t, name %t, scheduler %t; want %t, %t, %t", tt.in, l, n, s, tt.label, tt.name, tt.scheduler)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"", "name", "vips", "port", "protocol", "session_affinity", "session_affinity_timeout"}
	tests := []struct{ in, want string }{
		{"nmae", "name"},
		{"Name", "name"},
		{"vip", "vips"},
		{"prt", "port"},
		{"prot", "port"},
		{"proto", "protocol"},
		{"sesion_affinity", "session_affinity"},
		{"sessionAffinity", "session_affinity"},
		{"session_afinity_timout", "session_affinity_timeout"},
		{"color", ""},
		{"host", ""},
		{"pirt", "port"},
		{"a", ""},
		{"", ""},
		{strings.Repeat("name", 1000), ""},
	}
	for _, tt := range tests {
		if got := source.Nearest(tt.in, words); got != tt.want {
			t.Errorf("Nearest(%.30q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	tests := []struct{ in, want string }{
		{"a", `"a"`},
		{"a\"\n\x1b\u202e", `"a\"\n\x1b\u202e"`},
		{strings.Repeat("a", 64), `"` + strings.Repeat("a", 64) + `"`},
		{strings.Repeat("ä", 40), `"` + strings.Repeat("ä", 32) + `"...`},
		{"x" + strings.Repeat("ä", 40), `"x` + strings.Repeat("ä", 31) + `"...`},
	}
	for _, tt := range tests {
		if got := source.Excerpt(tt.in); got != tt.want {
			t.Errorf("Excerpt(%q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestPath(t *testing.T) {
	p := source.At("services", 2, "a b", "c.d", "e")
	if got, want := p.String(), `services[2]."a b"."c.d".e`; got != want {
		t.Errorf("path is %s, want %s", got, want)
	}
	for _, q := range []source.Path{nil, source.At("services"), p} {
		if !p.Under(q) {
			t.Errorf("%s is not under %s", p, q)
		}
	}
	for _, q := range []source.Path{source.At("services", 1), source.At("service"), append(p, p...)} {
		if p.Under(q) {
			t.Errorf("%s is under %s", p, q)
		}
	}
}

func TestPrintable(t *testing.T) {
	const in, want = "a \x1b[2J\n\"é\" \u202e\xff", `a \x1b[2J\n"é" \u202e�`
	if got := source.Printable(in); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a later version kept of a server may have values that this one has no words for.
func TestWordOfLaterVersion(t *testing.T) {
	var s source.Service
	text := `{"InternalTrafficPolicy": 9, "Masquerade": 9, "TrafficDistribution": 9, "HashOn": 9, "Forward": {"Method": 9, "Tunnel": 9}, "CloseConnections": 9}`
	fatal.If(t, json.Unmarshal([]byte(text), &s))
	got := []string{
		s.InternalTrafficPolicy.String(), s.Masquerade.String(), s.TrafficDistribution.String(), s.HashOn.String(),
		s.Forward.Method.String(), s.Forward.Tunnel.String(), s.CloseConnections.String(),
	}
	if want := []string{"cluster", "", "", "", "masquerade", "", "never"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
