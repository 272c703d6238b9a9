package read_test

import (
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// What texts of servers may claim: with [[owners]] what their share has, and programs, announcements and what is to be
// fetched only with a signature; without, addresses and ports only. None reads a file of this host.
func TestTextsOfServers(t *testing.T) {
	const (
		noOwners = "svcproxy.toml has no [[owners]]"
		unsigned = "is not signed"
		never    = "-"
	)
	head := "name = 'web'\nnamespace = 'team-a'\nvips = ['10.96.1.5']\nports = [{ port = 80 }]\n"
	toml := func(more string) string { return "[[services]]\n" + head + "endpoints = ['192.0.2.1']\n" + more }
	json := func(more string) string {
		return `{"services": [{"name": "web", "namespace": "team-a", "vips": ["10.96.1.5"], "ports": [{"port": 80}], "endpoints": ["192.0.2.1"]` + more + "}]}"
	}
	for _, tt := range []struct {
		name, text       string
		plain, signed    string // what is wrong without owners; empty: nothing
		shared, vouched  string // with owners; never: as without a signature
		line, sharedLine string // of the fault
	}{
		{"an address", toml(""), "", never, "", never, "", ""},
		{"an address in JSON", json(""), "", never, "", never, "", ""},
		{"another address", toml("external_ips = ['198.51.100.1']"), "", never, "198.51.100.1 is outside of addresses", never, "", "7:17"},
		{"another address in JSON", json(`, "external_ips": ["198.51.100.1"]`), "", never, "198.51.100.1 is outside of addresses", never, "", "1:147"},
		{"another node port", strings.Replace(toml(""), "port = 80", "port = 80, node_port = 22", 1), "", never, "node port 22 is outside of node_ports", never, "", "5:35"},
		{"another namespace", strings.Replace(toml(""), "team-a", "kube-system", 1), "", never, `namespace "kube-system" is outside of namespaces`, never, "", "3:13"},
		{"a program", toml(exec), noOwners, never, unsigned, "", "7:43", "7:43"},
		{"a program in JSON", json(`, "health_check": {"type": "exec", "command": ["/bin/true"]}`), noOwners, never, unsigned, "", "1:174", "1:174"},
		{"a program by defaults", "[defaults]\n" + exec + toml(""), noOwners, never, unsigned, "", "2:43", "2:43"},
		{"a program that is escaped", toml(`health_check = { type = "\u0065xec", command = ['/bin/true'] }`), noOwners, never, unsigned, "", "7:48", "7:48"},
		{"announcing", toml("announce = ['bgp']"), noOwners, never, unsigned, "", "7:12", "7:12"},
		{"announcing by defaults", "[defaults]\nannounce = ['l2']\n" + toml(""), noOwners, never, unsigned, "", "2:12", "2:12"},
		{"a list of this host", "[[services]]\n" + head + "endpoints_from = 'web.endpoints.json'\n", "reads no file of this host", never, "reads no file of this host", never, "6:18", "6:18"},
		{"endpoints alone", `["192.0.2.1"]`, "want an object", never, "want an object", never, "1:1", "1:1"},
	} {
		ext := ".toml"
		if strings.HasPrefix(tt.text, "{") || strings.HasPrefix(tt.text, `["`) {
			ext = ".json"
		}
		for _, name := range []string{"web" + ext, "web.endpoints" + ext} { // the second is not a list
			url := "https://config.example.net/team-a/" + name
			for what, j := range map[string]struct {
				owners       func() []read.Owner
				signed       bool
				want, former string
				line         string
			}{
				"without owners":         {nil, false, tt.plain, "", tt.line},
				"signed, without owners": {nil, true, tt.signed, tt.plain, tt.line},
				"with owners":            {twoTeams, false, tt.shared, "", tt.sharedLine},
				"signed, with owners":    {twoTeams, true, tt.vouched, tt.shared, tt.sharedLine},
			} {
				want := j.want
				if want == never {
					want = j.former
				}
				got := judged(t, read.Rules{Owners: j.owners, From: fetched(url, j.signed)}, url, tt.text)
				if want == "" && got != "" || want != "" && (!strings.HasPrefix(got, j.line+": ") || !strings.Contains(got, want)) {
					t.Errorf("%s, %s, %s:\n got: %s\nwant: %s: ... %s", name, tt.name, what, got, j.line, want)
				}
			}
		}
	}
}

// The copy of a text that was accepted runs its program only where the settings of now allow that.
func TestProgramsOfAcceptedTexts(t *testing.T) {
	withdrawn := func() []read.Owner { return twoTeams()[1:] }
	for _, tt := range []struct {
		name   string
		owners func() []read.Owner
		barred string
	}{
		{"allowed", twoTeams, ""},
		{"without owners", nil, "svcproxy.toml has no [[owners]]"},
		{"of no owner any more", withdrawn, "has this source, so it may claim nothing"},
	} {
		for _, guards := range []bool{false, true} {
			rules := read.Rules{Owners: tt.owners, From: read.Origin{URL: from, Accepted: true}, GuardPrograms: guards}
			v := read.NewVersion(t.Context(), from, []byte(claim("team-a", oneVIP+exec)), nil, rules, read.Rules.ParseCopy, nil)
			if v.Broken || len(v.Services) != 1 || v.UID.Load() != -1 {
				t.Fatalf("%s: %+v", tt.name, v)
			}
			got, barred := v.Services[0].HealthCheck.Barred, tt.barred
			if guards && barred == "" {
				barred = "would run as root"
			}
			if (got == "") != (barred == "") || !strings.Contains(got, barred) || fmt.Sprint(source.AnyError(v.Faults), len(v.Faults) > 0) != fmt.Sprint(false, got != "") {
				t.Errorf("%s, guarding %v: barred %q, faults %v; want %q", tt.name, guards, got, v.Faults, barred)
			}
		}
	}
}

// A program that a text of a server names never runs as root: not without exec_user, however it is signed.
func TestProgramOfTextNeedsUser(t *testing.T) {
	for guards, want := range map[bool]string{false: "", true: "its programs would run as root; set exec_user in [health] of svcproxy.toml"} {
		rules := read.Rules{Owners: twoTeams, From: fetched(from, true), GuardPrograms: guards}
		if got := judged(t, rules, from, claim("team-a", oneVIP+exec)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("guarding %v: %q; want %q", guards, got, want)
		}
	}
}
