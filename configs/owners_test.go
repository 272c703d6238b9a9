package configs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/configs"
)

func TestOwnersFaults(t *testing.T) {
	const (
		good  = "[[owners]]\nfiles = ['team-a-*.toml']\nnamespaces = ['team-a']\n"
		file  = `want a name without directory, in which * stands for any characters, such as "team-a-*.toml"`
		url   = `want a URL such as "https://config.example.net/team-a/", which with / at its end stands for all below it`
		ns    = `want the name of a namespace, or the beginning of names and *, such as "team-a-*"`
		ports = `want two ports, the lower one first, as in "30000-30099", or ""`
	)
	var many strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&many, "'2001:db8::%x/128', ", i)
	}
	for _, tt := range []struct{ name, in, want string }{
		{"good", good, ""},
		{"in one line", "owners = [{ files = ['*'], namespaces = ['*'], users = ['0', 'root'], node_ports = '80' }]", ""},
		{"files", good + "[[owners]]\nfiles = ['a/b.toml', '[', '', \"\\u001b.toml\", 'a', 'a']\nnamespaces = ['*']\n",
			"5:10: files[0] is \"a/b.toml\"; " + file + "\n5:22: files[1] is \"[\"; " + file + "\n5:27: files[2] is \"\"; " + file +
				"\n5:31: files[3] is \"\\x1b.toml\"; " + file + "\n5:51: files[5] is the same as files[4]"},
		{"sources", good + "sources = ['config.example.net', 'https://', 'https://x/?a', 'https://x/a/']", "4:12: sources[0] is \"config.example.net\"; " + url +
			"\n4:34: sources[1] is \"https://\"; " + url + "\n4:46: sources[2] is \"https://x/?a\"; " + url},
		{"users", good + "users = ['a b', 1001, '-x']", "4:10: users[0] is \"a b\"; want the name of a user, or its number in quotes\n4:17: users[1] is 1001, a number; want a string\n" +
			"4:23: users[2] is \"-x\"; want the name of a user, or its number in quotes"},
		{"addresses", good + "addresses = ['192.0.2.1', '192.0.2.1/24']", "4:14: \"192.0.2.1\" is not a range of addresses; write \"192.0.2.1/32\" for this one address\n" +
			"4:27: \"192.0.2.1/24\" has bits set behind its length of 24; write \"192.0.2.0/24\""},
		{"too many addresses", good + "addresses = [" + many.String() + "]", "4:13: addresses has 1001 elements, more than 1000"},
		{"ports", good + "node_ports = '30099-30000'", "4:14: node_ports is \"30099-30000\"; " + ports},
		{"a number of a port", good + "node_ports = 30000", "4:14: node_ports is 30000, a number; want a string"},
		{"namespaces", "[[owners]]\nfiles = ['*']\nnamespaces = ['Team', '-*', 'a-*', '*-a']", "3:15: namespaces[0] is \"Team\"; " + ns + "\n3:23: namespaces[1] is \"-*\"; " + ns + "\n3:36: namespaces[3] is \"*-a\"; " + ns},
		{"allow", good + "allow = ['exek', 'all']", "4:10: unknown permission \"exek\"; want exec, announce or fetch; did you mean \"exec\"?\n4:18: unknown permission \"all\"; want exec, announce or fetch"},
		{"no files", "[[owners]]\nusers = ['x']\n", "1:1: owners[0] has neither files nor sources; write files = [\"team-a-*.toml\"], say"},
		{"no namespaces", "[[owners]]\nfiles = ['*']\n", "1:1: warning: owners[0] has no namespaces, so its files can have no service; write namespaces = [\"default\"], say, or [\"*\"] for all"},
		{"users of sources", "[[owners]]\nsources = ['https://x/']\nnamespaces = ['*']\nusers = ['x']", "4:9: warning: users does nothing; it is for files, and there are none"},
		{"a misspelt key", good + "user = ['x']", "4:1: unknown key \"user\"; did you mean \"users\"?"},
		{"one table", "[owners]\nfiles = ['*']\n", "1:1: owners is a table; write [[owners]]"},
		{"too many", strings.Repeat(good, 257), "1:1: owners has 257 elements, more than 256"},
	} {
		s, faults := configs.Parse("s", []byte(tt.in))
		var lines []string
		for _, f := range faults {
			lines = append(lines, strings.TrimPrefix(f.String(), "s:"))
		}
		if diff := cmp.Diff(tt.want, strings.Join(lines, "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if tt.want == "" && fmt.Sprint(s.Owners) == "[]" {
			t.Errorf("%s: there are no owners", tt.name)
		}
	}
}
