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

// A parser makes plain lines of a configuration, without comments, with what it includes, and with its definitions
// replaced. It puts the statements of these into the blocks that they are in.
type parser struct {
	*reader.Result
	id       string            // of the host: lines that begin with @ and another one are left out
	pwd      string            // directory of the file that is read
	params   map[string]string // definitions: $NAME=VALUE
	files    int
	expanded int         // bytes of all lines that definitions made
	open     []*node     // from the whole text inwards
	count    int         // of statements
	take     func(*node) // takes each statement that is in no block, when it has ended
}

// parse reads a configuration, statement by statement.
func parse(in reader.Input, r *reader.Result, take func(*node)) {
	root := &node{Line: reader.Line{At: reader.Position{File: in.Name}, Words: []string{""}}, block: true}
	p := &parser{Result: r, id: in.ID, params: map[string]string{"_HASH": "#", "_BANG": "!"}, open: []*node{root}, take: take}
	p.text(in.Name, in.Data, 0)
	if open := p.open[len(p.open)-1]; open != root {
		reader.Fail(open.At, "the block %s has no end", source.Excerpt(open.key()))
	}
	p.flush()
}

// text reads the lines of a text.
func (p *parser) text(name string, data []byte, depth int) {
	before := p.pwd
	p.pwd = filepath.Dir(name)
	defer func() { p.pwd = before }()
	begun, pending := reader.Position{}, ""
	for at, line := range (reader.Input{Name: name, Data: data}).Lines() {
		if pending != "" {
			line = pending + "\n" + line
		} else if begun = at; !strings.Contains(line, "$") || !isDefinition.MatchString(line) {
			p.line(at, line, depth)
			continue
		}
		var goes bool // on with the next line
		if pending, goes = strings.CutSuffix(strings.TrimRight(line, " \t"), `\`); goes {
			continue
		}
		pending = ""
		p.line(begun, line, depth)
	}
	if pending != "" {
		p.line(begun, pending, depth)
	}
}

var (
	isDefinition = regexp.MustCompile(`^\s*(@\S+\s+)?\$[A-Za-z_][A-Za-z0-9_]*=`)
	definition   = regexp.MustCompile(`(?s)^\$([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)
	parameter    = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)(\s|$)`)
	include      = regexp.MustCompile(`^include[a-z]*\s+(\S.*)$`)
)

// line reads one line, which a definition may make several of.
func (p *parser) line(at reader.Position, line string, depth int) {
	if depth > reader.MaxDepth {
		reader.Fail(at, "definitions or files are nested more than %d deep", reader.MaxDepth)
	}
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "@") {
		line = p.forHost(at, line)
	}
	if m := definition.FindStringSubmatch(line); m != nil {
		p.params[m[1]] = strings.TrimSpace(m[2])
		return
	}
	line = strings.TrimSpace(uncomment(line))
	switch {
	case line == "":
	case line[0] == '~':
		p.Note(at, "a ~SEQ or ~LST block is left out", "write its lines out")
	case strings.Contains(line, "$") && parameter.MatchString(line):
		p.replace(at, line, depth)
	case include.MatchString(line):
		p.include(at, strings.Trim(include.FindStringSubmatch(line)[1], `"`), depth)
	default:
		p.statements(at, line)
	}
}

// forHost returns the rest of a line that begins with @ID or @^ID; empty: it is for other hosts.
func (p *parser) forHost(at reader.Position, line string) string {
	word := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' })[0]
	id, except := strings.CutPrefix(word[1:], "^")
	if (id == p.id) != except {
		return strings.TrimSpace(line[len(word):])
	}
	p.Note(at, "lines of "+source.Excerpt(word)+" are left out: this is converted for host "+source.Excerpt(p.id), "name another with --config-id")
	return ""
}

// replace puts the values of definitions in their places, and reads what that makes.
func (p *parser) replace(at reader.Position, line string, depth int) {
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
		reader.Fail(at, "definitions make a line of more than %d bytes", maxLine)
	}
	if unknown {
		p.statements(at, line)
		return
	}
	if p.expanded += len(text) + 10*strings.Count(text, "\n"); p.expanded > maxExpanded {
		reader.Fail(at, "definitions make more than %d bytes of it", maxExpanded)
	}
	for part := range strings.SplitSeq(text, "\n") {
		p.line(at, strings.ReplaceAll(part, "\x00", "$"), depth+1)
	}
}

// include reads the files that a pattern names, seen from the file that is read.
func (p *parser) include(at reader.Position, pattern string, depth int) {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(p.pwd, pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		p.Note(at, "no file is included by "+source.Excerpt(pattern), "convert it on its own, where it is")
		return
	}
	for _, name := range names {
		if p.files++; p.files > maxIncludes {
			reader.Fail(at, "more than %d files are included", maxIncludes)
		}
		data, err := p.Include("", name)
		if err == reader.ErrIncluded {
			reader.Fail(at, "%s", err)
		}
		if err != nil {
			p.Note(at, "it cannot be included: "+err.Error(), "convert it on its own")
			continue
		}
		p.text(name, data, depth+1)
	}
}

// maxNodes bounds the statements of a configuration.
const maxNodes = 1_000_000

// statements takes a line: statements end with it, at an opening brace, or before a closing one.
func (p *parser) statements(at reader.Position, line string) {
	words, err := reader.OfKeepalived.Split(line)
	if strings.Contains(line, "misc_path") { // which may be in single quotes
		if script, scriptErr := reader.OfScripts.Split(line); scriptErr == nil {
			words, err = script, nil
		}
	}
	if err != nil {
		reader.Fail(at, "%s", err)
	}
	var n *node
	for _, w := range words {
		in := p.open[len(p.open)-1]
		switch {
		case w == "{":
			if last := len(in.sub) - 1; n == nil && last >= 0 && !in.sub[last].block {
				n = in.sub[last] // the brace is on a line of its own
			}
			if n == nil {
				reader.Fail(at, "a block has no name")
			}
			if len(p.open) > reader.MaxDepth {
				reader.Fail(at, "blocks are nested more than %d deep", reader.MaxDepth)
			}
			n.block = true
			p.open, n = append(p.open, n), nil
		case w == "}":
			if len(p.open) == 1 {
				reader.Fail(at, "a brace closes no block")
			}
			if p.open, n = p.open[:len(p.open)-1], nil; len(p.open) == 1 {
				p.flush()
			}
		case n == nil:
			if p.count++; p.count > maxNodes {
				reader.Fail(at, "there are more than %d statements", maxNodes)
			}
			n = &node{Line: reader.Line{At: at, Words: []string{w}}}
			in.expect(n)
			in.sub = append(in.sub, n)
		default:
			n.Words = append(n.Words, w)
		}
	}
}

// flush hands over the complete statements of the whole text and drops them, to save memory.
func (p *parser) flush() {
	root := p.open[0]
	for _, n := range root.sub {
		p.take(n)
	}
	root.sub = root.sub[:0]
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
