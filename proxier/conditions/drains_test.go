package conditions

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

var began = time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC)

func target(t *testing.T, text string) DrainTarget {
	t.Helper()
	d, err := ParseDrainTarget(text)
	fatal.If(t, err)
	return d
}

func set(t *testing.T, d *Drains, text string, why policy.Drain) {
	t.Helper()
	fatal.If(t, d.Set(target(t, text), why))
}

func TestParseDrainTarget(t *testing.T) {
	a4, a6 := netip.MustParseAddr("192.168.10.12"), netip.MustParseAddr("fd00::12")
	web := source.Key{Namespace: "default", Name: "web"}
	tests := []struct {
		text string
		want DrainTarget
		name string // empty: as text
	}{
		{text: "192.168.10.12", want: DrainTarget{Addr: a4}},
		{text: "::ffff:192.168.10.12", want: DrainTarget{Addr: a4}, name: "192.168.10.12"},
		{text: "fd00:0::12", want: DrainTarget{Addr: a6}, name: "fd00::12"},
		{text: "web/192.168.10.12", want: DrainTarget{Addr: a4, Service: web}, name: "default/web/192.168.10.12"},
		{text: "prod/db/fd00::12", want: DrainTarget{Addr: a6, Service: source.Key{Namespace: "prod", Name: "db"}}},
		{text: "node", want: DrainTarget{Node: true}},
	}
	for _, tt := range tests {
		if tt.name == "" {
			tt.name = tt.text
		}
		if got := target(t, tt.text); got != tt.want || got.String() != tt.name {
			t.Errorf("%s: got %+v %s, want %+v %s", tt.text, got, got, tt.want, tt.name)
		}
	}
	for _, text := range []string{
		"", "web", "web/", "192.168.10.12:80", "[fd00::12]:80", "fe80::1%eth0", "0.0.0.0", "::", "/192.168.10.12",
		"a/b/c/192.168.10.12", "we b/192.168.10.12", "-x/web/192.168.10.12", "node/192.168.10.12/24", "\x1b[2J",
	} {
		if got, err := ParseDrainTarget(text); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: got %+v, %v; want an error that can be shown", text, got, err)
		}
	}
}

// Of the drains that concern an endpoint, the one with the first deadline counts.
func TestDrainsOf(t *testing.T) {
	web, db := source.Key{Namespace: "default", Name: "web"}, source.Key{Namespace: "prod", Name: "db"}
	a := netip.MustParseAddr("192.168.10.12")
	in := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	tests := []struct {
		name              string
		ofAll, ofService  *policy.Drain
		forWeb, forOthers string // reason; empty: not drained
	}{
		{"none", nil, nil, "", ""},
		{"of all services", &policy.Drain{Reason: "disk"}, nil, "disk", "disk"},
		{"of one", nil, &policy.Drain{Reason: "web"}, "web", ""},
		{"neither ends", &policy.Drain{Reason: "disk"}, &policy.Drain{Reason: "web"}, "web", "disk"},
		{"one ends", &policy.Drain{Reason: "disk", Until: in(5)}, &policy.Drain{Reason: "web"}, "disk", "disk"},
		{"the other ends", &policy.Drain{Reason: "disk"}, &policy.Drain{Reason: "web", Until: in(5)}, "web", "disk"},
		{"both end", &policy.Drain{Reason: "disk", Until: in(4)}, &policy.Drain{Reason: "web", Until: in(5)}, "disk", "disk"},
	}
	for _, tt := range tests {
		var d Drains
		if tt.ofAll != nil {
			set(t, &d, "192.168.10.12", *tt.ofAll)
		}
		if tt.ofService != nil {
			set(t, &d, "web/192.168.10.12", *tt.ofService)
		}
		for key, want := range map[source.Key]string{web: tt.forWeb, db: tt.forOthers} {
			got := ""
			if why := d.Of(key, a); why != nil {
				got = why.Reason
			}
			if got != want {
				t.Errorf("%s: %s is drained for %q, want %q", tt.name, key, got, want)
			}
		}
		if d.Of(web, netip.MustParseAddr("192.168.10.13")) != nil || d.Node() != nil {
			t.Errorf("%s: another address, or this host, is drained too", tt.name)
		}
	}
}

func TestDrainsRemove(t *testing.T) {
	var d Drains
	set(t, &d, "192.168.10.12", policy.Drain{By: "root", Until: began.Add(time.Hour)})
	set(t, &d, "node", policy.Drain{By: "root", Until: began.Add(time.Minute)})
	if d.Node() == nil || d.Remove(target(t, "web/192.168.10.12")) {
		t.Error("this host is not drained, or the drain of one service was removed that there was not")
	}
	if !d.Remove(target(t, "::ffff:192.168.10.12")) || d.Remove(target(t, "192.168.10.12")) || !d.Remove(target(t, "node")) {
		t.Error("the drains were not removed once each")
	}
	if got := d.List(); len(got) > 0 {
		t.Errorf("what is left: %v", got)
	}
}

func TestDrainsJSON(t *testing.T) {
	var d, read Drains
	set(t, &d, "prod/db/fd00::12", policy.Drain{By: "root", At: began})
	set(t, &d, "192.168.10.12", policy.Drain{Reason: "disk \x1b[2J\n", By: "anna", At: began, Until: began.Add(time.Hour)})
	set(t, &d, "node", policy.Drain{By: "anna", At: began})
	data, err := json.Marshal(&d)
	fatal.If(t, err)
	want := `[{"target":"node","by":"anna","since":"2026-11-22T21:00:00Z"},` +
		`{"target":"192.168.10.12","reason":"disk \\x1b[2J\\n","by":"anna","since":"2026-11-22T21:00:00Z","until":"2026-11-22T22:00:00Z"},` +
		`{"target":"prod/db/fd00::12","by":"root","since":"2026-11-22T21:00:00Z"}]`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
	fatal.If(t, readDrains(&read, string(data)))
	if diff := cmp.Diff(d.List(), read.List(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("read again (-written +read):\n%s", diff)
	}
	for _, bad := range []string{
		`[{"target":"web"}]`, `[{"target":7}]`, `{}`, `[{"target":"192.168.10.12","since":"x"}]`, `["node"`, `[`, `7`, `[{"target":"node"},{}]`, `[{"target":"node"},{"target":`,
	} {
		if err := readDrains(&read, bad); err == nil || len(read.List()) != 3 {
			t.Errorf("%s: %v, and %d drains; want an error, and as many as before", bad, err, len(read.List()))
		}
	}
}

// readDrains reads more drains, and returns what is wrong with them.
func readDrains(d *Drains, text string) error {
	bad, err := d.read(json.NewDecoder(strings.NewReader(text)))
	if bad != nil {
		return bad
	}
	return err
}

// There are so many drains at most, in memory and in the file, and one can still be changed.
func TestDrainsBound(t *testing.T) {
	var d Drains
	a := netip.MustParseAddr("10.0.0.0")
	var list []Drained
	for range MaxDrains {
		a = a.Next()
		list = append(list, Drained{Target: DrainTarget{Addr: a}})
		fatal.If(t, d.Set(DrainTarget{Addr: a}, policy.Drain{}))
	}
	if err := d.Set(DrainTarget{Addr: a}, policy.Drain{Reason: "again"}); err != nil {
		t.Error(err)
	}
	if err := d.Set(DrainTarget{Addr: a.Next()}, policy.Drain{}); !errors.Is(err, ErrTooManyDrains) {
		t.Errorf("one more: %v, want %v", err, ErrTooManyDrains)
	}
	data, err := json.Marshal(append(list, Drained{Target: DrainTarget{Addr: a.Next()}}))
	fatal.If(t, err)
	if err := readDrains(new(Drains), string(data)); !errors.Is(err, ErrTooManyDrains) {
		t.Errorf("one more in the file: %v, want %v", err, ErrTooManyDrains)
	}
}

func TestDrainTexts(t *testing.T) {
	tests := map[string]string{
		"":                         "",
		"new disk, ä 一":            "new disk, ä 一",
		"a\nb\x1b]0;x\x07\x80":     `a\nb\x1b]0;x\a�`,
		"\u202eright to left":      `\u202eright to left`,
		`already \x1b`:             `already \x1b`,
		strings.Repeat("x", 200):   strings.Repeat("x", 200),
		strings.Repeat("x", 201):   strings.Repeat("x", 197) + "...",
		strings.Repeat("一", 1<<20): strings.Repeat("一", 65) + "...",
	}
	for text, want := range tests {
		got := bounded(policy.Drain{Reason: text}).Reason
		if got != want || bounded(policy.Drain{Reason: got}).Reason != got {
			t.Errorf("%.50q: got %q, want %q, and the same again", text, got, want)
		}
	}
	if by := bounded(policy.Drain{By: strings.Repeat("b", 1000)}).By; len(by) != maxBy {
		t.Errorf("the user has %d bytes, want %d", len(by), maxBy)
	}
}

func TestDrainsAtOnce(t *testing.T) {
	var d Drains
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 100 {
				at := target(t, "10.0."+strconv.Itoa(i)+"."+strconv.Itoa(n))
				if err := d.Set(at, policy.Drain{}); err != nil || d.Of(source.Key{}, at.Addr) == nil || !d.Remove(at) {
					t.Errorf("%s: %v, or not drained", at, err)
				}
				d.List()
			}
		})
	}
	all.Wait()
}
