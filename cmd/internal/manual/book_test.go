package manual

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const sources = "../../.."

// Every page is in the book, each link of it leads somewhere, and it needs no other file.
func TestBookHoldsEveryPage(t *testing.T) {
	html, err := Book(os.DirFS(sources), nil)
	if err != nil {
		t.Error(err)
	}
	docs, err := filepath.Glob(sources + "/docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("docs: %q, %v", docs, err)
	}
	for _, path := range docs {
		if id := strings.TrimSuffix(filepath.Base(path), ".md"); !strings.Contains(string(html), `<section id="`+id+`">`) {
			t.Errorf("%s does not list %s", index, path)
		}
	}
	leadSomewhere(t, html)
	if m := regexp.MustCompile(`(src|<link[^>]* href)="[^"d#][^"]*"`).Find(html); m != nil {
		t.Errorf("the book needs %s", m)
	}
}

// leadSomewhere looks for what links of the book lead to.
func leadSomewhere(t *testing.T, html []byte) {
	t.Helper()
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllSubmatch(html, -1) {
		if ids[string(m[1])] {
			t.Errorf("two places are called %s", m[1])
		}
		ids[string(m[1])] = true
	}
	links := regexp.MustCompile(`href="#([^"]*)"`).FindAllSubmatch(html, -1)
	for _, m := range links {
		if !ids[string(m[1])] {
			t.Errorf("no place is called %s", m[1])
		}
	}
	if len(links) < 5 {
		t.Errorf("%d links", len(links))
	}
}

// The links of pages that are not in the book lead somewhere too.
func TestLinksBesideBook(t *testing.T) {
	b := &book{tree: os.DirFS(sources), byPath: map[string]*chapter{}}
	pages := append(b.listed(), index, "README.md", "CONTRIBUTING.md")
	for _, name := range pages {
		b.addFile(name)
	}
	b.render(b.byPath["README.md"])
	b.render(b.byPath["CONTRIBUTING.md"])
	for _, fault := range b.faults {
		t.Error(fault)
	}
}

func TestBookFaults(t *testing.T) {
	tree := fstest.MapFS{
		"docs/index.md": {Data: []byte("# List\n\n[a](a.md) [b](b.md) [again](a.md)\n\n<!-- a comment -->\n")},
		"docs/a.md": {Data: []byte("# A\n\n## Two words, `x`\n\n## Two words, `x`\n\n[1](b.md) [2](#two-words-x) [3](a.md#two-words-x-1) [4](https://example.com/#x) [5](../dir)\n" +
			"[6](#two) [7](none.md) [8](b.md#none) [9](../none) ![10](none.svg) ![11](bad.svg) ![12](good.png)\n\n<b>x</b>\n\n<div>\n")},
		"docs/bad.svg":  {Data: []byte(`<svg><image href="https://example.com/x.png"/></svg>`)},
		"docs/good.png": {Data: []byte("\x89PNG href=http://example.com/")},
		"docs/c.md":     {Data: []byte("# not listed")},
		"dir/file":      {Data: []byte("text")},
	}
	html, err := Book(tree, nil)
	want := []string{
		"docs/index.md: open docs/b.md: file does not exist",
		"docs/index.md: docs/a.md is listed twice",
		"docs/index.md: a link to b.md, which is not there or not listed in docs/index.md",
		"docs/a.md: a link to b.md, which is not there or not listed in docs/index.md",
		"docs/a.md: a link to #two: no heading has that name",
		"docs/a.md: a link to none.md, which is not there or not listed in docs/index.md",
		"docs/a.md: a link to b.md#none, which is not there or not listed in docs/index.md",
		"docs/a.md: a link to ../none, which is not there or not listed in docs/index.md",
		"docs/a.md: drawing none.svg: open docs/none.svg: file does not exist",
		`docs/a.md: drawing bad.svg needs something else: href="https://example.com/x.png`,
		"docs/a.md: HTML in Markdown is not rendered",
		"docs/a.md: HTML in Markdown is not rendered",
		"docs/a.md: HTML in Markdown is not rendered",
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{`id="a.two-words-x"`, `id="a.two-words-x-1"`, `href="#a.two-words-x-1"`, `href="#dir"`, "<h2 id=\"dir.file\">file</h2>", `src="data:image/png;base64,iVBORyBo`, `href="https://example.com/#x"`} {
		if !strings.Contains(string(html), part) {
			t.Errorf("no %s in\n%s", part, html)
		}
	}
}
