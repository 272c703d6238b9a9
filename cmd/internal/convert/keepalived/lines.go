package keepalived

import (
	"path/filepath"
	"regexp"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Bounds of what one configuration of keepalived may be made of.
const (
	maxIncludes = 1000     // files, all in all
	maxLine     = 64 << 10 // bytes of a line with its definitions replaced
	maxExpanded = 2 << 20  // bytes of all these lines
)

// A lineReader makes plain lines of a configuration: without comments, with what it includes, and
// with its definitions replaced.
type lineReader struct {
	*reader.Result
	id       string            // of the host: lines that begin with @ and another one are left out
	pwd      string            // directory of the file that is read
	params   map[string]string // definitions: $NAME=VALUE
	files    int
	expanded int // bytes of all lines that definitions made
	emit     func(at reader.Position, line string) error
}

// text reads the lines of a text.
func (p *lineReader) text(name string, data []byte, depth int) error {
	before := p.pwd
	p.pwd = filepath.Dir(name)
	defer func() { p.pwd = before }()
	begun, pending := reader.Position{}, ""
	for at, line := range (reader.Input{Name: name, Data: data}).Lines() {
		if pending != "" {
			line = pending + "\n" + line
		} else if begun = at; !strings.Contains(line, "$") || !isDefinition.MatchString(line) {
			if err := p.line(at, line, depth); err != nil {
				return err
			}
			continue
		}
		var goes bool // on with the next line
		if pending, goes = strings.CutSuffix(strings.TrimRight(line, " \t"), `\`); goes {
			continue
		}
		pending = ""
		if err := p.line(begun, line, depth); err != nil {
			return err
		}
	}
	if pending != "" {
		return p.line(begun, pending, depth)
	}
	return nil
}

var (
	isDefinition = regexp.MustCompile(`^\s*(@\S+\s+)?\$[A-Za-z_][A-Za-z0-9_]*=`)
	definition   = regexp.MustCompile(`(?s)^\$([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)
	parameter    = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)(\s|$)`)
	include      = regexp.MustCompile(`^include[a-z]*\s+(\S.*)$`)
)

// line reads one line, which a definition may make several of.
func (p *lineReader) line(at reader.Position, line string, depth int) error {
	if depth > reader.MaxDepth {
		return reader.ErrorAt(at, "definitions or files are nested more than %d deep", reader.MaxDepth)
	}
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "@") {
		if line = p.forHost(at, line); line == "" {
			return nil
		}
	}
	if strings.HasPrefix(line, "$") {
		if m := definition.FindStringSubmatch(line); m != nil {
			p.params[m[1]] = strings.TrimSpace(m[2])
			return nil
		}
	}
	line = strings.TrimSpace(uncomment(line))
	if strings.HasPrefix(line, "~") {
		p.Note(at, "a ~SEQ or ~LST block is left out", "write its lines out")
		return nil
	}
	if strings.Contains(line, "$") && parameter.MatchString(line) {
		return p.replace(at, line, depth)
	}
	if strings.HasPrefix(line, "include") {
		if m := include.FindStringSubmatch(line); m != nil {
			return p.include(at, strings.Trim(m[1], `"`), depth)
		}
	}
	if line == "" {
		return nil
	}
	return p.emit(at, line)
}

// forHost returns the rest of a line that begins with @ID or @^ID; empty: it is for other hosts.
func (p *lineReader) forHost(at reader.Position, line string) string {
	word, rest, _ := strings.Cut(line, " ")
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		word, rest = line[:i], line[i:]
	}
	id, except := strings.CutPrefix(word[1:], "^")
	if (id == p.id) != except {
		return strings.TrimSpace(rest)
	}
	p.Note(at, "lines of "+source.Excerpt(word)+" are left out: this is converted for host "+source.Excerpt(p.id), "name another with --config-id")
	return ""
}

// replace puts the values of definitions in their places, and reads what that makes.
func (p *lineReader) replace(at reader.Position, line string, depth int) error {
	unknown, size := true, len(line)
	text := parameter.ReplaceAllStringFunc(line, func(s string) string {
		m := parameter.FindStringSubmatch(s)
		value, known := p.params[m[1]+m[2]]
		switch m[1] + m[2] {
		case "_PWD":
			value, known = p.pwd, true
		case "_INSTANCE":
			value, known = p.id, true
		}
		if !known {
			return strings.ReplaceAll(s, "$", "\x00") // it stays as it is
		}
		unknown = false
		if size += len(value); size > maxLine {
			return ""
		}
		return value + m[3]
	})
	if size > maxLine {
		return reader.ErrorAt(at, "definitions make a line of more than %d bytes", maxLine)
	}
	if unknown {
		return p.emit(at, line)
	}
	if p.expanded += len(text) + 10*strings.Count(text, "\n"); p.expanded > maxExpanded {
		return reader.ErrorAt(at, "definitions make more than %d bytes of it", maxExpanded)
	}
	for part := range strings.SplitSeq(text, "\n") {
		if err := p.line(at, strings.ReplaceAll(part, "\x00", "$"), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// include reads the files that a pattern names, seen from the file that is read.
func (p *lineReader) include(at reader.Position, pattern string, depth int) error {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(p.pwd, pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		p.Note(at, "no file is included by "+source.Excerpt(pattern), "convert it on its own, where it is")
		return nil
	}
	for _, name := range names {
		if p.files++; p.files > maxIncludes {
			return reader.ErrorAt(at, "more than %d files are included", maxIncludes)
		}
		data, err := p.Include("", name)
		if err == reader.ErrIncluded {
			return reader.ErrorAt(at, "%s", err)
		}
		if err != nil {
			p.Note(at, "it cannot be included: "+err.Error(), "convert it on its own")
			continue
		}
		if err := p.text(name, data, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// uncomment returns a line up to a # or ! that is not quoted.
func uncomment(line string) string {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case '#', '!':
			if !quoted {
				return line[:i]
			}
		}
	}
	return line
}
