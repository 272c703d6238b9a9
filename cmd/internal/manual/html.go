package manual

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// index is the page that lists the others, in the order in which they are read.
const index = "docs/index.md"

//go:embed book.html
var bookHTML string

var bookTemplate = template.Must(template.New("book").Parse(bookHTML))

// markdown reads what GitHub does, and lists of terms.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM, extension.DefinitionList), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// A book is the manual as one file of HTML: the pages of docs, those of man, and the
// files that they link to.
type book struct {
	tree     fs.FS // the sources of svcproxy
	chapters []*chapter
	byPath   map[string]*chapter
	faults   []error
}

// A chapter is one page of it.
type chapter struct {
	Path, ID, Title string
	Headings        []heading // of the second level
	HTML            template.HTML

	source  []byte
	tree    ast.Node
	anchors anchors
}

type heading struct{ ID, Text string }

// Book returns the manual as one file of HTML that needs no other. All faults of
// links are in the error.
func Book(tree fs.FS, pages []page) ([]byte, error) {
	b := &book{tree: tree, byPath: map[string]*chapter{}}
	for _, name := range append([]string{index}, b.listed()...) {
		b.addFile(name)
	}
	for _, p := range pages {
		title := fmt.Sprintf("%s(%d)", p.name, p.section)
		b.add(title, []byte("# "+title+"\n\n"+regexp.MustCompile(`(?m)^#`).ReplaceAllString(p.body, "##")))
	}
	for i := 0; i < len(b.chapters); i++ { // a link to a file adds one
		b.render(b.chapters[i])
	}
	var out bytes.Buffer
	err := bookTemplate.Execute(&out, b.chapters)
	return out.Bytes(), errors.Join(append(b.faults, err)...)
}

func (b *book) fault(in, format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("%s: %s", in, fmt.Sprintf(format, args...)))
}

// listed returns the pages that index links to, in order.
func (b *book) listed() (names []string) {
	source, err := fs.ReadFile(b.tree, index)
	if err != nil {
		b.fault(index, "%v", err)
	}
	for _, m := range regexp.MustCompile(`\]\(([a-z-]+\.md)\)`).FindAllSubmatch(source, -1) {
		names = append(names, path.Join(path.Dir(index), string(m[1])))
	}
	return names
}

func (b *book) addFile(name string) {
	source, err := fs.ReadFile(b.tree, name)
	switch {
	case err != nil:
		b.fault(index, "%v", err)
		return
	case b.byPath[name] != nil:
		b.fault(index, "%s is listed twice", name)
		return
	}
	b.add(name, source)
}

// add parses a chapter. Its first heading is its title.
func (b *book) add(name string, source []byte) *chapter {
	id := strings.TrimSuffix(path.Base(name), ".md")
	if path.Ext(name) != ".md" {
		id = strings.NewReplacer("/", "-", "(", ".", ")", "").Replace(name)
	}
	c := &chapter{Path: name, ID: id, source: source, anchors: anchors{prefix: id + ".", taken: map[string]bool{}}}
	c.tree = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(&c.anchors))))
	walk(c.tree, func(n ast.Node) {
		h, ok := n.(*ast.Heading)
		if !ok {
			return
		}
		words := plain(h, source)
		switch anchor, _ := h.AttributeString("id"); {
		case c.Title == "":
			c.Title = words
		case h.Level == 2:
			c.Headings = append(c.Headings, heading{string(anchor.([]byte)), words})
		}
	})
	b.chapters, b.byPath[name] = append(b.chapters, c), c
	return c
}

// render resolves the links of a chapter, and makes HTML of it.
func (b *book) render(c *chapter) {
	walk(c.tree, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Link:
			n.Destination = b.resolve(c, string(n.Destination))
		case *ast.Image:
			n.Destination = b.inline(c, string(n.Destination))
		case *ast.RawHTML:
			b.fault(c.Path, "HTML in Markdown is not rendered")
		case *ast.HTMLBlock:
			if n.HTMLBlockType != ast.HTMLBlockType2 { // a comment
				b.fault(c.Path, "HTML in Markdown is not rendered")
			}
		}
	})
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, c.source, c.tree); err != nil {
		b.fault(c.Path, "%v", err)
	}
	c.HTML = template.HTML(out.String())
}

// walk calls f with each node, parents first.
func walk(n ast.Node, f func(ast.Node)) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			f(n)
		}
		return ast.WalkContinue, nil
	})
}

// plain returns the text of a heading.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	walk(n, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(source))
		case *ast.String:
			b.Write(n.Value)
		}
	})
	return b.String()
}
