package http

import (
	"net/url"
	"strings"
	"testing"
)

func TestURLs(t *testing.T) {
	for text, want := range map[string]string{
		"https://config.example.net/svc/index.json": "",
		"http://127.0.0.1:8080/web.toml":            "",
		"https://[2001:db8::1]:8443/a/b.c/web.toml": "",
		"https://h/x,y=z@1+2~/web.toml":             "",

		"":                                                 "want https://",
		"web.toml":                                         "want https://",
		"ftp://h/web.toml":                                 "want https://",
		"file:///etc/svcproxy/web.toml":                    "want https://",
		"https:web.toml":                                   "want https://",
		"https:///web.toml":                                "want https://",
		"https://h\n/web.toml":                             "want https://",
		"https://h:0x1/web.toml":                           "want https://",
		"https://user:secret@h/web.toml":                   "no user or password",
		"https://user@h/web.toml":                          "no user or password",
		"https://h/web.toml?a=1":                           "neither ? nor #",
		"https://h/web.toml?":                              "neither ? nor #",
		"https://h/web.toml#a":                             "neither ? nor #",
		"https://h/web.toml#":                              "neither ? nor #",
		"https://h/a b/web.toml":                           "letters, digits",
		"https://h/%61/web.toml":                           "letters, digits",
		"https://h/%2e%2e/web.toml":                        "letters, digits",
		"https://h/a/../web.toml":                          "letters, digits",
		"https://h/a//web.toml":                            "letters, digits",
		"https://h/./web.toml":                             "letters, digits",
		"https://h/\u202eweb.toml":                         "letters, digits",
		"https://h/$(id)/web.toml":                         "letters, digits",
		"https://bücher.example/web.toml":                  "letters, digits",
		"HTTPS://h/web.toml":                               "letters, digits",
		"https://H/web.toml":                               "lower case",
		"https://h:443/web.toml":                           "a port only if",
		"http://h:80/web.toml":                             "a port only if",
		"https://h:/web.toml":                              "a port only if",
		"https://h:0443/web.toml":                          "a port only if",
		"https://h:65536/web.toml":                         "a port only if",
		"https://h/":                                       "ends in .toml or .json",
		"https://h":                                        "letters, digits",
		"https://h/web.yaml":                               "ends in .toml or .json",
		"https://h/" + strings.Repeat("a", 1024) + ".toml": "more than 1024 bytes",
	} {
		if _, err := ParseURL(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

func TestNamesOfEntries(t *testing.T) {
	at, _ := url.Parse("https://h:8443/team-a/index.json")
	for ref, want := range map[string]string{
		"web.toml":                           "https://h:8443/team-a/web.toml",
		"./web.toml":                         "https://h:8443/team-a/web.toml",
		"sub/web.json":                       "https://h:8443/team-a/sub/web.json",
		"../team-a/web.toml":                 "https://h:8443/team-a/web.toml",
		"/team-a/web.toml":                   "https://h:8443/team-a/web.toml",
		"https://h:8443/team-a/web.toml":     "https://h:8443/team-a/web.toml",
		"//h:8443/team-a/web.toml":           "https://h:8443/team-a/web.toml",
		"":                                   "",
		"index.json":                         "",
		"../web.toml":                        "",
		"/team-b/web.toml":                   "",
		"/team-ab/web.toml":                  "",
		"http://h:8443/team-a/web.toml":      "",
		"https://h/team-a/web.toml":          "",
		"https://other:8443/team-a/web.toml": "",
		"//other/team-a/web.toml":            "",
		"https://u@h:8443/team-a/web.toml":   "",
		"%2e%2e/team-b/web.toml":             "",
		"..%2fteam-b/web.toml":               "",
		"web.toml?x=1":                       "",
		"web.toml#x":                         "",
		"web\x00.toml":                       "",
		"web\n.toml":                         "",
		"file:///etc/passwd.toml":            "",
		"web.txt":                            "",
		strings.Repeat("a", 1020) + ".toml":  "",
		strings.Repeat("a/", 1<<20):          "",
	} {
		got, err := entryName(at, ref)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.80s: %q, %v; want %q", ref, got, err, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"https://h/a", "https://h/b", true},
		{"https://h/a", "https://H:443/b", true},
		{"https://h/a", "http://h/a", false},
		{"https://h/a", "https://h:8443/a", false},
		{"https://h/a", "https://h.example/a", false},
		{"https://h/a", "//other/a", false},
	} {
		a, _ := url.Parse(test.a)
		b, _ := a.Parse(test.b)
		if sameOrigin(a, b) != test.same {
			t.Errorf("%s and %s: want %v", a, b, test.same)
		}
	}
}
