package read_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// The users of the teams, and who is none of them.
const (
	teamA    = 61001
	teamB    = 61002
	stranger = 61003
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// twoTeams are the owners of a host that root shares with two teams, of which the second may only have addresses.
func twoTeams() []read.Owner {
	return []read.Owner{
		{
			Files: []string{"team-a-*.toml", "team-a-*.json"}, Users: []string{"61001"},
			Sources:   []string{"https://config.example.net/team-a/", "https://other.example.net/a.toml"},
			Addresses: prefixes("203.0.113.0/28", "10.96.1.0/24", "2001:db8:a::/48"), NodePorts: read.PortRange{First: 30000, Last: 30099},
			Namespaces: []string{"team-a", "a-*"}, Allow: []string{"exec", "announce", "fetch"},
		},
		{Files: []string{"team-b.toml"}, Users: []string{"61002"}, Addresses: prefixes("10.96.2.0/24"), Namespaces: []string{"team-b"}},
		{Files: []string{"team-a-*.toml"}, Users: []string{"61002"}, Addresses: prefixes("10.96.3.0/24"), Namespaces: []string{"team-a"}},
		{
			Files: []string{"*"}, Users: []string{"root"}, Addresses: prefixes("0.0.0.0/0", "::/0"), NodePorts: read.PortRange{First: 1, Last: 65535},
			Namespaces: []string{"*"}, Allow: []string{"exec", "announce"},
		},
		{Files: []string{"anybody.toml"}, Namespaces: []string{"default"}},
	}
}

func of(uid uint32) read.Origin { return read.Origin{Owned: true, UID: uid} }

func fetched(url string, signed bool) read.Origin { return read.Origin{URL: url, Signed: signed} }

// claim is a service file in TOML of one service, of a namespace, that also says more.
func claim(namespace, more string) string {
	return fmt.Sprintf("[[services]]\nname = 'web'\nnamespace = '%s'\nendpoints = ['192.0.2.1']\n%s\n", namespace, more)
}

const (
	oneVIP  = "vips = ['10.96.1.5']\nports = [{ port = 80 }]\n"
	exec    = "health_check = { type = 'exec', command = ['/bin/true'] }\n"
	nothing = ", so it may claim nothing"
	name    = "team-a-x.toml"
	from    = "https://config.example.net/team-a/web.toml"
)

func TestClaims(t *testing.T) {
	tests := []struct {
		name, file string
		from       read.Origin
		text, want string // behind the name of the file; empty: the text is accepted
	}{
		// Addresses.
		{"an address", name, of(teamA), claim("team-a", oneVIP), ""},
		{"all kinds of addresses, of both families", name, of(teamA), claim("team-a", "vips = ['10.96.1.255']\nexternal_ips = ['203.0.113.15']\nload_balancer_ips = ['2001:db8:a::1']\nports = [{ port = 22 }]"), ""},
		{"an address outside", name, of(teamA), claim("team-a", "vips = ['10.96.1.1', '8.8.8.8']\nports = [{ port = 53 }]"),
			"5:22: 8.8.8.8 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"203.0.113.0/28\", \"10.96.1.0/24\" or \"2001:db8:a::/48\""},
		{"an external address behind the range", name, of(teamA), claim("team-a", "external_ips = ['203.0.113.16']\nports = [{ port = 80 }]"),
			"5:17: 203.0.113.16 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"203.0.113.0/28\", \"10.96.1.0/24\" or \"2001:db8:a::/48\""},
		{"an address of a load balancer, of another family", "team-b.toml", of(teamB), claim("team-b", "vips = ['10.96.2.1']\nload_balancer_ips = ['2001:db8:a::1']\nports = [{ port = 80 }]"),
			"6:22: 2001:db8:a::1 is outside of addresses of owners[1] in svcproxy.toml; want an address of \"10.96.2.0/24\""},
		{"an address of the other team", "team-b.toml", of(teamB), claim("team-b", oneVIP), "5:9: 10.96.1.5 is outside of addresses of owners[1] in svcproxy.toml; want an address of \"10.96.2.0/24\""},
		{"where there are none", "anybody.toml", of(stranger), claim("default", oneVIP), "5:9: 10.96.1.5 is outside of addresses of owners[4] in svcproxy.toml; leave it out: it has none"},
		{"of a service that is off", "team-b.toml", of(teamB), claim("team-b", oneVIP+"enabled = false\n"), "5:9: 10.96.1.5 is outside of addresses of owners[1] in svcproxy.toml; want an address of \"10.96.2.0/24\""},
		{"an address that is none", name, of(teamA), claim("team-a", "vips = ['8.8.8']\nports = [{ port = 53 }]"), "5:9: \"8.8.8\" is not an IP address; an IPv4 address has 4 numbers, not 3"},
		{"what is wrong anyway", name, of(teamA), claim("team-a", "vips = ['127.0.0.1']\nports = [{ port = 53 }]"),
			"5:9: 127.0.0.1 is a loopback address; want an address that can be routed to this host\n" +
				"5:9: 127.0.0.1 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"203.0.113.0/28\", \"10.96.1.0/24\" or \"2001:db8:a::/48\""},
		{"root", "x.toml", of(0), claim("any", "vips = ['8.8.8.8']\nannounce = ['bgp']\nports = [{ port = 53, node_port = 22 }]"), ""},

		// Ports of the host.
		{"node ports at the ends", name, of(teamA), claim("team-a", "ports = [{ name = 'a', port = 80, node_port = 30000 }, { name = 'b', port = 81, node_port = 30099 }]"), ""},
		{"a port of the host", name, of(teamA), claim("team-a", "ports = [{ port = 80, node_port = 22 }]"), "5:35: node port 22 is outside of node_ports of owners[0] in svcproxy.toml; want 30000-30099"},
		{"behind the ports", name, of(teamA), claim("team-a", "ports = [{ name = 'a', port = '80-81' }, { name = 'b', protocol = ['tcp', 'udp'], port = 90, node_port = 30100 }]"),
			"5:106: node port 30100 is outside of node_ports of owners[0] in svcproxy.toml; want 30000-30099"},
		{"no ports at all", "team-b.toml", of(teamB), claim("team-b", "ports = [{ port = 80, node_port = 30000 }]"), "5:35: node port 30000 is outside of node_ports of owners[1] in svcproxy.toml; leave it out: it has none"},
		{"a health check port", name, of(teamA), claim("team-a", "external_traffic_policy = 'local'\nhealth_check_node_port = 10349\nports = [{ port = 80, node_port = 30001 }]"),
			"6:26: health_check_node_port 10349 is outside of node_ports of owners[0] in svcproxy.toml; want 30000-30099"},
		{"a health check port of its own", name, of(teamA), claim("team-a", "external_traffic_policy = 'local'\nhealth_check_node_port = 30002\nports = [{ port = 80, node_port = 30001 }]"), ""},

		// Namespaces.
		{"a namespace by its beginning", name, of(teamA), claim("a-b", oneVIP), ""},
		{"a namespace of another", name, of(teamA), claim("team-b", oneVIP), "3:13: namespace \"team-b\" is outside of namespaces of owners[0] in svcproxy.toml; want namespace = \"team-a\" or \"a-*\""},
		{"the namespace that is not written", "team-b.toml", of(teamB), "[[services]]\nname = 'web'\nvips = ['10.96.2.1']\nports = [{ port = 80 }]\nendpoints = ['192.0.2.1']\n",
			"1:1: namespace \"default\" is outside of namespaces of owners[1] in svcproxy.toml; want namespace = \"team-b\""},

		// Permissions.
		{"a program", name, of(teamA), claim("team-a", oneVIP+exec), ""},
		{"a program without a permission", "team-b.toml", of(teamB), claim("team-b", "vips = ['10.96.2.1']\nports = [{ port = 80 }]\n"+exec),
			"7:43: svcproxy runs no program that this file names: \"exec\" is not in allow of owners[1] in svcproxy.toml; leave it out, or add it there"},
		{"to announce", name, of(teamA), claim("team-a", oneVIP+"announce = ['bgp', 'l2']"), ""},
		{"to announce without a permission", "team-b.toml", of(teamB), claim("team-b", "vips = ['10.96.2.1']\nports = [{ port = 80 }]\nannounce = ['l2']"),
			"7:12: svcproxy announces nothing of this file: \"announce\" is not in allow of owners[1] in svcproxy.toml; leave it out, or add it there"},

		// Defaults of a file, which are refused where they stand, and once.
		{"defaults", name, of(teamA), "[defaults]\nnamespace = 'team-a'\nannounce = ['bgp']\n" + exec + service2("", "10.96.1.1") + service2("", "10.96.1.2"), ""},
		{"defaults without permissions", "team-b.toml", of(teamB), "[defaults]\nnamespace = 'team-a'\nannounce = ['bgp']\n" + exec + service2("", "10.96.2.1") + service2("2", "10.96.2.2"),
			"2:13: namespace \"team-a\" is outside of namespaces of owners[1] in svcproxy.toml; want namespace = \"team-b\"\n" +
				"3:12: svcproxy announces nothing of this file: \"announce\" is not in allow of owners[1] in svcproxy.toml; leave it out, or add it there\n" +
				"4:43: svcproxy runs no program that this file names: \"exec\" is not in allow of owners[1] in svcproxy.toml; leave it out, or add it there"},
		{"a default that is replaced", "team-b.toml", of(teamB), "[defaults]\nnamespace = 'team-b'\n" + service2("", "10.96.2.1") + "namespace = 'default'\n" + service2("2", "10.96.2.2"),
			"8:13: namespace \"default\" is outside of namespaces of owners[1] in svcproxy.toml; want namespace = \"team-b\""},

		// JSON, and several services.
		{"JSON", "team-a-x.json", of(teamA), `{"services": [{"name": "web", "namespace": "team-a", "vips": ["10.96.1.1"], "ports": [{"port": 80}], "endpoints": ["192.0.2.1"]}]}`, ""},
		{"JSON with an address outside", "team-a-x.json", of(teamA), `{"services": [{"name": "web", "namespace": "team-a", "vips": ["10.96.2.1"], "ports": [{"port": 80}], "endpoints": ["192.0.2.1"]}]}`,
			"1:63: 10.96.2.1 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"203.0.113.0/28\", \"10.96.1.0/24\" or \"2001:db8:a::/48\""},
		{"one of two services", "team-b.toml", of(teamB), service2("", "10.96.2.1") + "namespace = 'team-b'\n" + service2("2", "10.96.1.1") + "namespace = 'team-b'\n",
			"9:9: 10.96.1.1 is outside of addresses of owners[1] in svcproxy.toml; want an address of \"10.96.2.0/24\""},

		// Lists of endpoints.
		{"a list of the team", name, of(teamA), claimFrom("team-a-web.endpoints.json"), ""},
		{"a list of the other team", name, of(teamA), claimFrom("team-b.endpoints.json"),
			"6:18: \"team-b.endpoints.json\" is outside of files of owners[0] in svcproxy.toml; want a list whose name matches \"team-a-*.toml\" or \"team-a-*.json\""},
		{"the file of a list", "team-a-web.endpoints.json", of(teamA), `["192.0.2.1"]`, ""},
		{"the file of a list of another user", "team-a-web.endpoints.json", of(teamB), `["192.0.2.1"]`,
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61002" + nothing + "; files of user 61002 are called \"team-b.toml\" (owners[1])"},
		{"an empty list of nobody", "x.endpoints.json", of(teamA), `[]`,
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])"},

		// Names and users.
		{"the second that matches the name", name, of(teamB), claim("team-a", "vips = ['10.96.3.1']\nports = [{ port = 80 }]"), ""},
		{"the share of that one", name, of(teamB), claim("team-a", oneVIP), "5:9: 10.96.1.5 is outside of addresses of owners[2] in svcproxy.toml; want an address of \"10.96.3.0/24\""},
		{"a new name", "team-c.toml", of(teamA), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])"},
		{"a file of another user", "team-b.toml", of(teamA), claim("team-b", "vips = ['10.96.2.1']\nports = [{ port = 80 }]"),
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])"},
		{"nobody's file", name, of(stranger), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61003" + nothing + "; files of this name are of user \"61001\" (owners[0]): chown it"},
		{"of any user", "anybody.toml", of(stranger), claim("default", "ports = [{ port = 80 }]"), ""},
		{"behind a link of another user", name, read.Origin{}, claim("team-a", oneVIP),
			"a link to this file belongs neither to root nor to the owner of the file" + nothing + "; give the link the owner of the file (chown -h), or put the file itself in its place"},
		{"a file that others may write", name, read.Origin{UID: teamA, Loose: true}, claim("team-a", oneVIP),
			"others than its owner may write this file" + nothing + "; chmod go-w"},
		{"of any user, that others may write", "anybody.toml", read.Origin{UID: teamA, Loose: true}, claim("default", "ports = [{ port = 80 }]"), ""},
		{"nobody's file without services", "team-c.toml", of(teamA), "services = []\n",
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])"},
		{"nobody's broken file", "team-c.toml", of(teamA), "services = 1\n",
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])\n1:12: services is 1, a number; want a list"},
		{"nobody's file that was accepted", "team-c.toml", read.Origin{Accepted: true}, claim("team-a", oneVIP), ""},
		{"elsewhere, by name", "team-b.toml", read.Origin{Owned: true, UID: stranger, Elsewhere: true}, claim("team-b", oneVIP),
			"5:9: 10.96.1.5 is outside of addresses of owners[1] in svcproxy.toml; want an address of \"10.96.2.0/24\""},
		{"elsewhere, by user first", name, read.Origin{Owned: true, UID: teamB, Elsewhere: true}, claim("team-a", oneVIP),
			"5:9: 10.96.1.5 is outside of addresses of owners[2] in svcproxy.toml; want an address of \"10.96.3.0/24\""},
		{"a name that steers terminals", "team-\x1b[2J.toml", of(teamA), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has a file of this name and of user 61001" + nothing + "; files of user 61001 are called \"team-a-*.toml\" or \"team-a-*.json\" (owners[0])"},

		// Texts of servers.
		{"a server", from, fetched(from, false), claim("team-a", oneVIP), ""},
		{"one text of a server", "https://other.example.net/a.toml", fetched("https://other.example.net/a.toml", false), claim("team-a", oneVIP), ""},
		{"a server that announces and runs a program", from, fetched(from, true), claim("team-a", oneVIP+"announce = ['bgp']\n"+exec), ""},
		{"without a signature", from, fetched(from, false), claim("team-a", oneVIP+"announce = ['bgp']\n"+exec),
			"7:12: svcproxy announces nothing of this file: allow of owners[0] in svcproxy.toml is for signed texts of servers, and this one is not signed; leave it out, or sign the text\n" +
				"8:43: svcproxy runs no program that this file names: allow of owners[0] in svcproxy.toml is for signed texts of servers, and this one is not signed; leave it out, or sign the text"},
		{"another source", "https://config.example.net/team-b/web.toml", fetched("https://config.example.net/team-b/web.toml", true), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has this source" + nothing + "; write [[owners]] with \"https://config.example.net/team-b/web.toml\" in sources"},
		{"a source by a way around", "https://config.example.net/team-a/../team-b/x.toml", fetched("https://config.example.net/team-a/../team-b/x.toml", true), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has this source" + nothing + "; write its URL without \".\", \"..\" and \"//\""},
		{"that is escaped", "https://config.example.net/team-a/%2e%2e/x.toml", fetched("https://config.example.net/team-a/%2e%2e/x.toml", true), claim("team-a", oneVIP),
			"no [[owners]] in svcproxy.toml has this source" + nothing + "; write its URL without \".\", \"..\" and \"//\""},
		{"a server that wants another address", from, fetched(from, true), claim("team-a", "vips = ['10.96.2.1']\nports = [{ port = 80 }]"),
			"5:9: 10.96.2.1 is outside of addresses of owners[0] in svcproxy.toml; want an address of \"203.0.113.0/28\", \"10.96.1.0/24\" or \"2001:db8:a::/48\""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rules := read.Rules{Owners: twoTeams, From: tt.from}
			if got := judged(t, rules, tt.file, tt.text); got != tt.want {
				t.Errorf("faults\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// service2 is a service in TOML, without a namespace.
func service2(suffix, vip string) string {
	return fmt.Sprintf("[[services]]\nname = 'web%s'\nvips = ['%s']\nports = [{ port = 80 }]\nendpoints = ['192.0.2.1']\n", suffix, vip)
}

// claimFrom is a service with a list of endpoints.
func claimFrom(list string) string {
	return fmt.Sprintf("[[services]]\nname = 'web'\nnamespace = 'team-a'\nvips = ['10.96.1.1']\nports = [{ port = 80 }]\nendpoints_from = '%s'\n", list)
}

// judged returns what is wrong with a text, a line each, without its name.
func judged(t *testing.T, rules read.Rules, path, text string) string {
	t.Helper()
	v := read.NewVersion(t.Context(), path, []byte(text), nil, rules, read.Rules.ParseNew, nil)
	if v.Broken != source.AnyError(v.Faults) || v.Broken && (len(v.Services) > 0 || v.List != nil) {
		t.Errorf("broken: %v, %d services, faults %v", v.Broken, len(v.Services), v.Faults)
	}
	var lines []string
	for _, f := range v.Faults {
		if f.Warning {
			continue
		}
		line := f.String()
		for _, cut := range []string{source.Quote(path) + ": ", source.Quote(path) + ":"} {
			line = strings.TrimPrefix(line, cut)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Without owners, files may do everything, and texts of servers may claim addresses only.
func TestClaimsWithoutOwners(t *testing.T) {
	const without = "it is from a server, and svcproxy.toml has no [[owners]]; leave it out, or sign the text and write [[owners]] with its URL in sources and allow = [%q]"
	everything := claim("x", "vips = ['8.8.8.8']\nports = [{ port = 53, node_port = 22 }]\nannounce = ['bgp']\n"+exec)
	for _, owners := range []func() []read.Owner{nil, func() []read.Owner { return nil }} {
		for _, tt := range []struct {
			from read.Origin
			want string
		}{
			{of(stranger), ""},
			{read.Origin{}, ""},
			{fetched(from, true), fmt.Sprintf("7:12: svcproxy announces nothing of this file: "+without, "announce") + "\n" +
				fmt.Sprintf("8:43: svcproxy runs no program that this file names: "+without, "exec")},
		} {
			if got := judged(t, read.Rules{Owners: owners, From: tt.from}, name, everything); got != tt.want {
				t.Errorf("from %+v\n got: %s\nwant: %s", tt.from, got, tt.want)
			}
		}
	}
	if got := judged(t, read.Rules{From: fetched(from, false)}, from, claim("x", oneVIP)); got != "" {
		t.Errorf("an address of a server: %s", got)
	}
}

// A text that is read by name, as that of a server, is judged by where it is from.
func TestReadTextOfServer(t *testing.T) {
	for url, want := range map[string]int{from: 0, "https://config.example.net/team-b/web.toml": 1} {
		f, _ := read.Rules{Owners: twoTeams, From: fetched(url, true), GuardPrograms: true}.ReadText(url, t.TempDir(), strings.NewReader(claim("team-a", oneVIP+exec)))
		if len(f.Faults) != want || len(f.Services) != 1-want {
			t.Errorf("%s: %d services, %v", url, len(f.Services), f.Faults)
		}
	}
}

// What was accepted of a file is judged again when shares change, though its text is known.
func TestSharesOfKnownServices(t *testing.T) {
	owners := twoTeams()
	rules := read.Rules{Owners: func() []read.Owner { return owners }, From: of(teamB)}
	text := []byte(service2("", "10.96.2.1") + "namespace = 'team-b'\n" + service2("2", "10.96.2.2") + "namespace = 'team-b'\n")
	first := read.NewVersion(t.Context(), "team-b.toml", text, nil, rules, read.Rules.ParseNew, nil)
	if len(first.Services) != 2 || len(first.Known) != 2 {
		t.Fatalf("%d services, %d known, %v", len(first.Services), len(first.Known), first.Faults)
	}
	again := read.NewVersion(t.Context(), "team-b.toml", text, nil, rules, read.Rules.ParseNew, first.Known)
	if len(again.Services) != 2 || again.Services[0] != first.Services[0] {
		t.Errorf("services are not those that are known: %v", again.Faults)
	}
	owners[1].Addresses = prefixes("10.96.2.1/32")
	now := read.NewVersion(t.Context(), "team-b.toml", text, nil, rules, read.Rules.ParseNew, first.Known)
	if want := `team-b.toml:9:9: 10.96.2.2 is outside of addresses of owners[1] in svcproxy.toml; want an address of "10.96.2.1/32"`; len(now.Faults) != 1 || now.Faults[0].String() != want {
		t.Errorf("faults %v, want %s", now.Faults, want)
	}
}

// A file outside of its share names a thousand places, and no more.
func TestManyClaims(t *testing.T) {
	var vips []string
	for i := range 1100 {
		vips = append(vips, fmt.Sprintf("'10.97.%d.%d'", i/250, i%250+1))
	}
	text := claim("team-a", "vips = ["+strings.Join(vips, ", ")+"]\nports = [{ port = 80 }]")
	lines := strings.Split(judged(t, read.Rules{Owners: twoTeams, From: of(teamA)}, name, text), "\n")
	if want := "the file has more faults; the first 1000 found are shown"; len(lines) != 1001 || lines[1000] != want {
		t.Errorf("%d faults, the last %s", len(lines), lines[len(lines)-1])
	}
}
