package read

import (
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// Endpoints that are fetched need a permission, and of a text of a server a signature, whatever the URL is.
func TestFetch(t *testing.T) {
	may, mayNot := &Owner{Namespaces: []string{"*"}, Allow: []string{mayFetch}}, &Owner{Namespaces: []string{"*"}, Files: []string{"*"}}
	for _, tt := range []struct {
		name string
		share
		from, want string
	}{
		{"with a permission", share{Owner: may}, "https://192.0.2.1/web.json", ""},
		{"without", share{Owner: mayNot, name: "owners[1] in svcproxy.toml"}, "consul://web",
			`endpoints_from: svcproxy fetches nothing for this file: "fetch" is not in allow of owners[1] in svcproxy.toml; leave it out, or add it there`},
		{"not signed", share{Owner: may, name: "owners[0] in svcproxy.toml", from: Origin{URL: "https://192.0.2.1/x.toml"}}, "nomad://web",
			`endpoints_from: svcproxy fetches nothing for this file: allow of owners[0] in svcproxy.toml is for signed texts of servers, and this one is not signed; leave it out, or sign the text`},
		{"signed", share{Owner: may, from: Origin{URL: "https://192.0.2.1/x.toml", Signed: true}}, "nomad://web", ""},
		{"a server without owners", share{from: Origin{URL: "https://192.0.2.1/x.toml", Signed: true}}, "https://192.0.2.1/web.json",
			`endpoints_from: svcproxy fetches nothing for this file: it is from a server, and svcproxy.toml has no [[owners]]; leave it out, or sign the text and write [[owners]] with its URL in sources and allow = ["fetch"]`},
		{"a list of this host", share{Owner: may, from: Origin{URL: "https://192.0.2.1/x.toml", Signed: true}}, "web.endpoints.json",
			`endpoints_from: a text of a server reads no file of this host; write its endpoints here`},
		{"a list of the directory", share{Owner: mayNot}, "web.endpoints.json", ""},
	} {
		got := ""
		for _, p := range tt.refuse(&source.Service{EndpointsFrom: tt.from}) {
			got += fmt.Sprintf("%s: %s; %s", p.Path, p.Msg, p.Hint)
		}
		if got != tt.want {
			t.Errorf("%s:\n got: %s\nwant: %s", tt.name, got, tt.want)
		}
	}
}

// Only a URL that names its text in one way lies below another.
func TestSources(t *testing.T) {
	o := Owner{Sources: []string{"https://192.0.2.1/a/", "https://192.0.2.1/b", "etcd:/svcproxy/a/"}}
	for url, want := range map[string]bool{
		"https://192.0.2.1/a/":           true,
		"https://192.0.2.1/a/x/y.toml":   true,
		"https://192.0.2.1/a":            false,
		"https://192.0.2.1/ab/x.toml":    false,
		"https://192.0.2.1/b":            true,
		"https://192.0.2.1/b/x.toml":     false,
		"https://192.0.2.1/a/../c.toml":  false,
		"https://192.0.2.1/a/%2E%2e/c":   false,
		"https://192.0.2.1/a/x%2f..%2fc": false,
		"https://192.0.2.1/a/x..c":       true,
		"https://192.0.2.1/a/x%2f../c":   false,
		"https://192.0.2.1/a//c":         false,
		"https://192.0.2.1/a/./c":        false,
		"https://192.0.2.1/a/c?x=/../":   false,
		"https://192.0.2.1/a/c#x":        false,
		"https://192.0.2.1.example/a/c":  false,
		"http://192.0.2.1/a/c":           false,
		"etcd:/svcproxy/a/web.toml":      true,
		"etcd:/svcproxy/a/../b/web.toml": false,
		"https://192.0.2.1/a/%zz":        false,
	} {
		if got := o.hasSource(url); got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
	}
}

// Ports are written as two numbers, one, or none.
func TestPortRange(t *testing.T) {
	for text, want := range map[string]string{
		"30000-30099": "30000-30099", "80": "80-80", "": "", "1-65535": "1-65535",
		"0": "no", "0-5": "no", "5-4": "no", "1-65536": "no", "-5": "no", "5-": "no", " 5": "no", "1-2-3": "no", "+1": "no",
	} {
		got := "no"
		if r, ok := ParsePortRange(text); ok {
			got = r.String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if (PortRange{}).Has(0) || !(PortRange{1, 2}).Has(2) || (PortRange{2, 3}).Has(1) {
		t.Error("a range has ports outside of it, or lacks one")
	}
}

// The hint for a file without a share says what of name and user to change.
func TestMissed(t *testing.T) {
	owners := []Owner{
		{Files: []string{"a.toml"}, Users: []string{"no-such-user"}},
		{Files: []string{"b*", "c"}, Users: []string{"no-such-user", "61001"}},
		{Sources: []string{"https://192.0.2.1/"}, Users: []string{"61002"}},
		{Files: []string{"1", "2", "3", "4", "5", "6"}, Users: []string{"61003"}},
	}
	for _, tt := range []struct {
		name string
		uid  uint32
		want string
	}{
		{"a.toml", 61002, `/etc/passwd has no user "no-such-user": write the number in users of owners[0]`},
		{"b.toml", 61002, `files of this name are of user "no-such-user" or "61001" (owners[1]): chown it`},
		{"a.toml", 61001, `files of user 61001 are called "b*" or "c" (owners[1])`},
		{"a.toml", 61003, `files of user 61003 are called "1", "2", "3", "4" or one of 2 more (owners[3])`},
		{"d.toml", 61002, `write [[owners]] with "d.toml" in files`},
	} {
		if got := missed(owners, tt.name, Origin{Owned: true, UID: tt.uid}); got != tt.want {
			t.Errorf("%s of %d: %s, want %s", tt.name, tt.uid, got, tt.want)
		}
	}
}
