package http

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

const sumA, sumB = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"

var indexURL, _ = url.Parse("https://h/svc/index.json")

func TestIndexes(t *testing.T) {
	list := func(entries string) string { return `{"version": 7, "files": [` + entries + `]}` }
	one := `{"url": "web.toml", "sha256": "` + sumA + `"}`
	for text, want := range map[string]string{
		list(""):  "",
		list(one): "",
		list(one + `, {"url": "a/mail.json", "sha256": "` + sumB + `", "canary": "5%"}`): "",
		`{"files": [], "version": 1}`: "",

		"":                               "EOF",
		"[]":                             "want {",
		"null":                           "want {",
		"7":                              "want {",
		"<html>":                         "invalid character",
		"{":                              "is truncated",
		list(one) + "{}":                 "has more text after its end",
		list(one)[:len(list(one))-1]:     "is truncated",
		list(one)[:len(list(one))-2]:     "EOF",
		`{}`:                             "want version",
		`{"version": 1}`:                 "want version",
		`{"files": []}`:                  "want version",
		`{"version": 0, "files": []}`:    "want version",
		`{"version": null, "files": []}`: "want version",
		`{"version": 1, "files": null}`:  "want [",
		`{"version": 1, "files": {}}`:    "want [",
		`{"version": -1, "files": []}`:   "cannot unmarshal",
		`{"version": 1.5, "files": []}`:  "cannot unmarshal",
		`{"version": "1", "files": []}`:  "cannot unmarshal",
		`{"version": 99999999999999999999, "files": []}`:                        "cannot unmarshal",
		`{"version": 1, "version": 2, "files": []}`:                             "version twice",
		`{"version": 1, "files": [], "files": []}`:                              "files twice",
		`{"version": 1, "files": [], "other": 1}`:                               `unknown key "other"`,
		`{"version": 1, "files": [7]}`:                                          "files[0]: json: cannot unmarshal",
		list(`{}`):                                                              `files[0]: url ""`,
		list(one + "," + one):                                                   "twice",
		list(`{"url": "web.toml", "sha256": ""}`):                               "want 64 hexadecimal digits",
		list(`{"url": "web.toml", "sha256": "` + sumA + `00"}`):                 "want 64 hexadecimal digits",
		list(`{"url": "web.toml", "sha256": "` + sumA[2:] + `zz"}`):             "want 64 hexadecimal digits",
		list(`{"url": "../web.toml", "sha256": "` + sumA + `"}`):                "not below https://h/svc/",
		list(`{"url": "https://other/svc/web.toml", "sha256": "` + sumA + `"}`): "not below https://h/svc/",
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canry": "5%"}`):    `unknown field "canry"`,
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canary": "5"}`):    `want "0%" to "100%"`,
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canary": "101%"}`): `want "0%" to "100%"`,
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canary": "-5%"}`):  `want "0%" to "100%"`,
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canary": ""}`):     `want "0%" to "100%"`,
		list(`{"url": "web.toml", "sha256": "` + sumA + `", "canary": 5}`):      "cannot unmarshal",
		list(`{"` + strings.Repeat("x", 1<<20) + `": 1}`):                       "unknown field",
		list(strings.Repeat("{},", 10)) + strings.Repeat("[", 1<<20):            `files[0]: url ""`,
		strings.Repeat("[", 1<<20):                                              "want {",
		`{"version": ` + strings.Repeat("[", 1<<20):                             "exceeded max depth",
	} {
		_, err := parseIndex(indexURL, []byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s: %v; want %q", text, err, want)
		}
		if err != nil && len(err.Error()) > 2*maxMessage {
			t.Errorf("%.80s: an error of %d bytes", text, len(err.Error()))
		}
	}
}

// The example index in the manual is valid.
func TestIndexOfManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/fleet.md")
	fatal.If(t, err)
	_, text, _ := strings.Cut(string(page), "```\n{")
	text, _, _ = strings.Cut(text, "```")
	ix, err := parseIndex(indexURL, []byte("{"+text))
	if err != nil || len(ix.entries) != 2 || ix.version != 42 || ix.entries[0].share != 5 {
		t.Errorf("%+v, %v, of:\n{%s", ix, err, text)
	}
}

// An index with too many entries is refused before it takes memory: 2 bytes of text could become 72 bytes.
func TestIndexIsBounded(t *testing.T) {
	many := func(n int) []byte {
		var b strings.Builder
		b.WriteString(`{"version": 1, "files": [`)
		for i := range n {
			fmt.Fprintf(&b, `%s{"url": "%d.toml", "sha256": "%s"}`, strings.Repeat(",", min(1, i)), i, sumA)
		}
		return []byte(b.String() + "]}")
	}
	if ix, err := parseIndex(indexURL, many(maxEntries)); err != nil || len(ix.entries) != maxEntries {
		t.Error(len(ix.entries), err)
	}
	if _, err := parseIndex(indexURL, many(maxEntries+1)); err == nil || !strings.Contains(err.Error(), "more than 100000 texts") {
		t.Error(err)
	}
}

func TestKindsOfJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"files": []}`:                             "true",
		`{"version": 1, "files": []}`:               "true",
		`{"services": []}`:                          "false",
		`{"$schema": "x", "services": []}`:          "false",
		`{"defaults": {"files": 1}, "services": 1}`: "false",
		`{"error": "not ready"}`:                    "neither an index",
		`{}`:                                        "neither an index",
		`[]`:                                        "want {",
		`service unavailable`:                       "invalid character",
		`{"a": ` + strings.Repeat("[", 1<<20):       "exceeded max depth",
	} {
		got, err := isIndex([]byte(text))
		if err == nil && want != fmt.Sprint(got) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, %v; want %s", text, got, err, want)
		}
	}
}

// A growing share keeps its hosts, has about the size that it states, and has different hosts for each entry.
func TestShareOfCanary(t *testing.T) {
	const hosts = 10_000
	covered := func(name string, share int) (list []string) {
		e := entry{name: name, share: share}
		for i := range hosts {
			if host := fmt.Sprintf("node-%d", i); e.covers(host) {
				list = append(list, host)
			}
		}
		return list
	}
	before := covered("https://h/web.toml", 0)
	if len(before) != 0 {
		t.Errorf("0%% is %d hosts", len(before))
	}
	for _, share := range []int{5, 25, 50, 100} {
		now := covered("https://h/web.toml", share)
		if want := hosts * share / 100; len(now) < want*8/10 || len(now) > want*12/10 {
			t.Errorf("%d%% is %d of %d hosts", share, len(now), hosts)
		}
		for _, host := range before {
			if !slices.Contains(now, host) {
				t.Fatalf("%s is not in %d%% any more", host, share)
			}
		}
		before = now
	}
	if slices.Equal(covered("https://h/web.toml", 5), covered("https://h/mail.toml", 5)) {
		t.Error("each entry has the same hosts first")
	}
}

func FuzzParseIndex(f *testing.F) {
	for _, text := range []string{
		`{"version": 1, "files": [{"url": "web.toml", "sha256": "` + sumA + `", "canary": "5%"}]}`,
		`{"version": 1, "files": [{"url": "https://h/svc/a/../../x.toml", "sha256": "` + sumA + `"}]}`,
		`{"version": 18446744073709551615, "files": [{"url": "//h/svc/%2e%2e/x.toml", "sha256": "` + sumA + `"}]}`,
		`{"services": [], "files": []}`, `{"files": [{}], "version": 1`, "[[[[", "\xff\xfe", `{"version": 1, "files": [{"url": "\u0000.toml"}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := isIndex(data); err != nil && source.Printable(err.Error()) != err.Error() {
			t.Errorf("the error %q cannot be printed", err)
		}
		ix, err := parseIndex(indexURL, data)
		if err != nil {
			if source.Printable(err.Error()) != err.Error() || len(err.Error()) > 2*maxMessage {
				t.Errorf("the error %q cannot be printed", err)
			}
			return
		}
		for i, e := range ix.entries {
			u, err := ParseURL(e.name)
			if err != nil || !sameOrigin(u, indexURL) || !strings.HasPrefix(u.Path, "/svc/") || e.share < 0 || e.share > everyone {
				t.Errorf("accepted %+v: %v", e, err)
			}
			if i > 0 && ix.entries[i-1].name >= e.name {
				t.Errorf("%s before %s", ix.entries[i-1].name, e.name)
			}
		}
		if ix.version == 0 || len(ix.entries) > maxEntries {
			t.Errorf("accepted version %d with %d entries", ix.version, len(ix.entries))
		}
	})
}
