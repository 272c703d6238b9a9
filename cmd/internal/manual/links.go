package manual

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"

	"github.com/yuin/goldmark/ast"
)

// anchors gives headings the names that GitHub gives them. It implements parser.IDs.
type anchors struct {
	prefix string // of the chapter, in the book
	taken  map[string]bool
}

// Generate returns a name that no other heading of the chapter has.
func (a *anchors) Generate(text []byte, _ ast.NodeKind) []byte {
	base := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(string(text)))
	name := base
	for i := 1; a.taken[name]; i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	a.taken[name] = true
	return []byte(a.prefix + name)
}

// Put takes a name that a page gives by itself, of which there are none.
func (a *anchors) Put(name []byte) { a.taken[string(name)] = true }

// resolve returns where a link leads within the book. Links to other hosts stay.
func (b *book) resolve(c *chapter, link string) []byte {
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "" {
		return []byte(link)
	}
	to := c
	if u.Path != "" {
		if to = b.at(path.Join(path.Dir(c.Path), u.Path)); to == nil {
			b.fault(c.Path, "a link to %s, which is not there or not listed in %s", link, index)
			return nil
		}
	}
	if u.Fragment == "" {
		return []byte("#" + to.ID)
	}
	if !to.anchors.taken[u.Fragment] {
		b.fault(c.Path, "a link to %s: no heading has that name", link)
	}
	return []byte("#" + to.ID + "." + u.Fragment)
}

// at returns the chapter of a path. Files beside the pages, and folders of such, are
// added when a page links to them; nil: there is none.
func (b *book) at(name string) *chapter {
	if c := b.byPath[name]; c != nil || path.Ext(name) == ".md" {
		return c
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n", name)
	err := fs.WalkDir(b.tree, name, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(b.tree, file)
		if file != name {
			fmt.Fprintf(&out, "## %s\n\n", strings.TrimPrefix(file, name+"/"))
		}
		fmt.Fprintf(&out, "`````\n%s\n`````\n\n", text)
		return err
	})
	if err != nil {
		return nil
	}
	return b.add(name, []byte(out.String()))
}

// inline returns a drawing, or a picture, as a part of the page.
func (b *book) inline(c *chapter, link string) []byte {
	svg, err := fs.ReadFile(b.tree, path.Join(path.Dir(c.Path), link))
	if err != nil {
		b.fault(c.Path, "drawing %s: %v", link, err)
	}
	if path.Ext(link) == ".png" {
		return []byte("data:image/png;base64," + base64.StdEncoding.EncodeToString(svg))
	}
	if m := outside.Find(svg); m != nil {
		b.fault(c.Path, "drawing %s needs something else: %s", link, m)
	}
	return []byte("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(svg))
}

// outside is what a drawing has from elsewhere.
var outside = regexp.MustCompile(`href=["']?[^#"'][^"']*|@import[^;]*|url\([^#)][^)]*\)`)
