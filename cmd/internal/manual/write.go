package manual

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
)

// A page is one page of the manual.
type page struct {
	name    string // svcproxy
	section int    // 8
	title   string // of the section
	body    string // Markdown, from NAME on
}

// Write writes all pages and completions below dir: man/man5, man/man8, completions,
// and the whole manual as index.html. tree is that of the sources.
func Write(dir string, root *cobra.Command, tree fs.FS) error {
	pages, err := allPages(root, tree)
	if err != nil {
		return err
	}
	html, err := Book(tree, pages)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "index.html"), html); err != nil {
		return err
	}
	for _, p := range pages {
		path := filepath.Join(dir, "man", fmt.Sprintf("man%d", p.section), fmt.Sprintf("%s.%d", p.name, p.section))
		if err := write(path, p.roff()); err != nil {
			return err
		}
	}
	return writeCompletions(filepath.Join(dir, "completions"), root)
}

func allPages(root *cobra.Command, tree fs.FS) ([]page, error) {
	settings, err := readSchema(tree, "configs/svcproxy.schema.json")
	if err != nil {
		return nil, err
	}
	service, err := readSchema(tree, "configs/service.schema.json")
	if err != nil {
		return nil, err
	}
	return []page{commandsPage(root), settingsPage(settings), servicePage(service)}, nil
}

// roff returns a page as man(1) reads it.
func (p page) roff() []byte {
	head := fmt.Sprintf("%% %q %q %q %q %q\n", p.name, fmt.Sprint(p.section), "", "svcproxy", p.title)
	return minuses(md2man.Render([]byte(head + strings.ReplaceAll(p.body, "\n## ", "\n### "))))
}

// minuses has each - of text, such as that of a flag, be the one of a keyboard:
// roff makes a typographic hyphen of it otherwise, which no shell takes.
func minuses(roff []byte) []byte {
	lines := bytes.Split(bytes.ReplaceAll(roff, []byte(`\-`), []byte("-")), []byte("\n"))
	for i, line := range lines {
		if !bytes.HasPrefix(line, []byte(".TH")) {
			lines[i] = bytes.ReplaceAll(line, []byte("-"), []byte(`\-`))
		}
	}
	return bytes.Join(lines, []byte("\n"))
}

// writeCompletions writes one file for each shell, by the name that it looks for.
func writeCompletions(dir string, root *cobra.Command) error {
	var bash, zsh, fish bytes.Buffer
	if err := root.GenBashCompletionV2(&bash, true); err != nil {
		return err
	}
	if err := root.GenZshCompletion(&zsh); err != nil {
		return err
	}
	if err := root.GenFishCompletion(&fish, true); err != nil {
		return err
	}
	for path, text := range map[string][]byte{"bash/svcproxy": bash.Bytes(), "zsh/_svcproxy": zsh.Bytes(), "fish/svcproxy.fish": fish.Bytes()} {
		if err := write(filepath.Join(dir, path), text); err != nil {
			return err
		}
	}
	return nil
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
