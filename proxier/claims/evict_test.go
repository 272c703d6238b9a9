package claims

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// text is a file of another source.
func text(u source.Unit) source.Unit {
	u.ID.Source = "http"
	return u
}

func goneText(name string) source.Changes {
	return source.Changes{Delete: []source.UnitID{{Source: "http", Name: name}}}
}

// A file of an earlier source has what it wants, whenever it comes. The other is refused until that goes, or wants something else.
func TestFilesOfEarlierSourceWin(t *testing.T) {
	const v1, v2, v3 = "10.96.0.1:80", "10.96.0.2:80", "10.96.0.3:80"
	taken := `u:1:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`
	both := policytest.Set(text(policytest.File("u", "y "+v1, "z "+v2)))
	a := policytest.Set(policytest.File("a", "x "+v1))
	for _, tt := range []struct {
		name  string
		steps []source.Changes
		want  string
	}{
		{"it comes first", []source.Changes{a, both}, "x@a\n" + taken},
		{"it comes later", []source.Changes{both, a}, "x@a\n" + taken},
		{"it goes", []source.Changes{both, a, policytest.Gone("a")}, "y@u\nz@u"},
		{"it moves", []source.Changes{both, a, policytest.Set(policytest.File("a", "x "+v3))}, "x@a\ny@u\nz@u"},
		{"the other moves", []source.Changes{both, a, policytest.Set(text(policytest.File("u", "y "+v3)))}, "x@a\ny@u"},
		{"the other goes", []source.Changes{both, a, goneText("u")}, "x@a"},
		{"the other wants something else already", []source.Changes{
			policytest.Set(policytest.File("b", "w "+v2)), policytest.Set(text(policytest.File("u", "y "+v1))),
			policytest.Set(text(policytest.File("u", "y "+v2))), policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "w "+v3)),
		}, "w@b\nx@a\ny@u"},
		{"a name", []source.Changes{policytest.Set(text(policytest.File("u", "x "+v2))), a}, "x@a\n" + `u:1:1: service "default/x" is already defined (a:1:1)`},
		{"one that cannot have all", []source.Changes{both, policytest.Set(policytest.File("a", "x "+v1, "w 10349"))},
			"y@u\nz@u\n" + `a:1:1: service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (u:1:1)` + "\n" +
				`a:2:1: service "default/w": port 10349/tcp is the one svcproxy itself listens on; choose another port, or another http_address, metrics_address or port of [bgp]`},
	} {
		tr := NewTracker([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:10349")}, "file", "http")
		for _, ch := range tt.steps {
			tr.Apply(ch)
		}
		if got := inUse(tr); got != tt.want {
			t.Errorf("%s:\n got: %s\nwant: %s", tt.name, got, tt.want)
		}
	}
}

// A file of a later source has again what it had, if the room that it gave is free in the end and what it wants by now is refused.
func TestEvictedFileHasAgainWhatItHad(t *testing.T) {
	tr := limited(6)
	u := func(services ...string) source.Unit { return text(policytest.File("u", services...)) }
	tr.Apply(policytest.Set(policytest.File("a", sized(1, 1)...), policytest.File("b", sized(2, 3)...), u(sized(3, 2)...)))
	tr.Apply(policytest.Set(u("s3-0 10.3.0.1:80", "w 10.1.0.1:80")))
	tr.Accepted()
	changed := tr.Apply(policytest.Set(policytest.File("a", sized(1, 3)...), policytest.File("b", sized(2, 1)...)))
	taken := `u:2:1: service "default/w": 10.1.0.1:80/tcp is taken by "default/s1-0" (a:1:1)`
	if got, want := inUse(tr), "s1-0@a\ns1-1@a\ns1-2@a\ns2-0@b\ns3-0@u\ns3-1@u\n"+taken; got != want || len(changed) != 4 {
		t.Errorf("\n got: %s\nwant: %s\n%d changes", got, want, len(changed))
	}
	if r := tr.Refusals(); len(r) != 1 || !r[0].Stale || len(tr.Accepted()) != 2 {
		t.Errorf("%+v", r)
	}
	tr.Apply(policytest.Set(policytest.File("a", "x 10.3.0.2:80")))
	if got, want := inUse(tr), "s2-0@b\ns3-0@u\nw@u\nx@a"; got != want {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
}

// What files of the earliest source have does not depend on what those of another have, or when they came.
func TestLaterSourceChangesNothingForEarlier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alone, beside := NewTracker(nil, "file", "http"), NewTracker(nil, "file", "http")
		limits := source.Products{Frontends: uint64(rapid.IntRange(0, 9).Draw(t, "limit")), Endpoints: 1 << 30, SourceRanges: 1 << 30}
		alone.Limit(limits)
		beside.Limit(limits)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			var services []string
			for _, s := range []string{"x", "y", "z"} {
				if n := rapid.IntRange(0, 4).Draw(t, "address"); n > 0 {
					services = append(services, fmt.Sprintf("%s%s 10.96.0.%d:80", s, name, n))
				}
			}
			if rapid.Bool().Draw(t, "of the later source") {
				beside.Apply(policytest.Set(text(policytest.File("u"+name, services...))))
				continue
			}
			ch := policytest.Set(policytest.File(name, services...))
			alone.Apply(ch)
			beside.Apply(ch)
		}
		var got []string
		for line := range strings.Lines(inUse(beside)) {
			if at := strings.IndexByte(line, '@'); at > 0 && line[at+1] != 'u' {
				got = append(got, strings.TrimSpace(line))
			}
		}
		var want []string
		for line := range strings.Lines(inUse(alone)) {
			if strings.Contains(line, "@") {
				want = append(want, strings.TrimSpace(line))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("files beside others: %v, alone: %v", got, want)
		}
	})
}
