package read

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A file is read service by service, each from a text of its own, so that when
// it changes only the services whose text changed are read again: one of a
// hundred, as a rule. This needs a file that is plainly a list of services:
// [[services]] at the start of lines in TOML, an object with a list of objects in
// JSON, and defaults for them, in TOML above. Any other is read as a whole.
//
// Texts that are good one by one make a good file: one in TOML is a row of lines,
// and each of ours holds [[services]] once and no other table, what is above no more than
// [defaults]; of one in JSON,
// what is left without its services is looked at too. A fault of a service stands
// as far behind the beginning of the service as it does in the text of its own.

// A chunk is the text of one service, and where it begins.
type chunk struct {
	at   int // offset in the file
	text []byte
	pos  source.Position
}

// inFile returns where something of the chunk is in the file.
func (c chunk) inFile(p source.Position) source.Position {
	switch {
	case p.Line == 1:
		p.Line, p.Col = c.pos.Line, c.pos.Col+p.Col-1
	case p.Line > 1:
		p.Line += c.pos.Line - 1
	}
	p.File = c.pos.File
	return p
}

// A chunkResult is what was read of a chunk: its service, and warnings with their places in the chunk.
type chunkResult struct {
	service  *source.Service
	warnings []source.Fault
}

// KnownServices are services by the checksums of their texts.
type KnownServices map[[sha256.Size]byte]chunkResult

// A chunkedReading is what is read of a file in chunks.
type chunkedReading struct {
	*reading
	isJSON bool
	said   any           // what the file has as defaults
	before KnownServices // of an earlier version
	now    KnownServices
	faults []source.Fault
	bad    bool // one of these is more than a warning
}

// inChunks reads a file service by service, except for those known from before. It
// returns false when the file must be read as a whole.
func (rules Rules) inChunks(ctx context.Context, path string, data []byte, isJSON bool, before KnownServices) ([]*source.Service, []source.Fault, KnownServices, bool) {
	text := bytes.TrimPrefix(data, []byte("\ufeff"))
	list, defaults := splitChunks(text, isJSON)
	if len(list) < 2 || len(list) > rules.Limits.orDefault().Services || !utf8.Valid(data) { // of one, the whole is as good
		return nil, nil, nil, false
	}
	p := &chunkedReading{reading: rules.newReading(elementPath(isJSON)), isJSON: isJSON, said: defaults, before: before, now: make(KnownServices, len(list))}
	p.shareKnown(before)
	if !p.chunkDefaults(rules, defaults) { // there is something to say of them
		return nil, nil, nil, false
	}
	for _, c := range list {
		if ctx.Err() != nil {
			return nil, []source.Fault{Unreadable(path, context.Cause(ctx))}, nil, true
		}
		c.pos.File = path
		if !p.take(c) {
			faults, ok := syntaxOf(c, text[c.at:], isJSON)
			return nil, faults, p.now, ok
		}
		if p.over || decode.TooMany(p.faults) && p.bad { // nobody reads more
			break
		}
	}
	faults := decode.Cap(path, p.faults)
	if p.bad {
		return nil, faults, p.now, true
	}
	return p.services, faults, p.now, true
}

// take takes over the service of a chunk if it is known, else reads it. It returns false when the
// text is not one of a service.
func (p *chunkedReading) take(c chunk) bool {
	sum := mixed(c.text, p.said)
	m, ok := p.before[sum]
	if ok && p.reuse(m.service, c.pos) {
		m.service = p.services[len(p.services)-1]
		p.now[sum] = m
	} else if m.warnings, ok = p.readNew(c, sum); !ok {
		return false
	}
	p.bad = p.bad || source.AnyError(m.warnings)
	for _, f := range m.warnings {
		f.Pos = c.inFile(f.Pos)
		p.faults = append(p.faults, f)
	}
	return true
}

// readNew reads a chunk, and notes its service as known if it is good, with this checksum. It
// returns false when the text is not one of a service.
func (p *chunkedReading) readNew(c chunk, sum [sha256.Size]byte) (found []source.Fault, ok bool) {
	if found, ok = p.chunk(c, p.isJSON); !ok || source.AnyError(found) {
		return found, ok
	}
	s := p.services[len(p.services)-1]
	if p.check == nil || len(p.check(s)) == 0 { // what the host can do may change
		p.now[sum] = chunkResult{s, found}
	}
	return found, true
}

// chunk reads one service, and returns what is wrong with it. It returns false when the
// text is not one of a service.
func (p *reading) chunk(c chunk, isJSON bool) ([]source.Fault, bool) {
	doc, v, ok := element(c.text, isJSON)
	if !ok {
		return nil, false
	}
	before := len(p.services)
	p.service(v, c.pos)
	if len(p.services) > before {
		p.setChunkPositions(doc, p.services[before], elementPath(isJSON))
	}
	return p.r.Take(doc), true
}

// syntaxOf returns the fault of a text in TOML that begins with a chunk which has
// one. All before it is good, so it is that of the file. What is no fault to the
// end of the file is one of cutting it into chunks: it returns false.
func syntaxOf(c chunk, rest []byte, isJSON bool) ([]source.Fault, bool) {
	if isJSON {
		return nil, false
	}
	doc, faults := decode.TOML(c.pos.File, rest)
	if doc != nil || faults[0].Msg == decode.TooDense { // which the whole need not be
		return nil, false
	}
	faults[0].Pos = c.inFile(faults[0].Pos)
	return faults, true
}

// reuse takes over a service that was good before. What the host can do may have changed since.
func (p *reading) reuse(s *source.Service, pos source.Position) bool {
	sum := p.products.Plus(s.Products())
	if p.limits.Exceeded(sum, source.OfFile) != nil || p.check != nil && len(p.check(s)) > 0 {
		return false
	}
	p.products = sum
	if s.Pos != pos {
		moved := *s
		moved.Pos = pos
		s = &moved
	}
	p.services = append(p.services, s)
	return true
}

// elementPath is where a chunk holds its service.
func elementPath(isJSON bool) source.Path {
	if isJSON {
		return nil
	}
	return source.At("services", 0)
}

// element returns the one service that a chunk holds.
func element(text []byte, isJSON bool) (*decode.Doc, any, bool) {
	if isJSON {
		doc, faults := decode.JSON("", text)
		if faults != nil {
			return nil, nil, false
		}
		return doc, doc.Root, true
	}
	doc, faults := decode.TOML("", text)
	if faults != nil || len(doc.Root) != 1 {
		return nil, nil, false
	}
	list, _ := doc.Root["services"].([]map[string]any)
	if len(list) != 1 {
		return nil, nil, false
	}
	return doc, list[0], true
}

// splitChunks cuts the text of a file into those of its services, and returns what it has as
// defaults. It returns no services when there is anything else.
func splitChunks(text []byte, isJSON bool) (list []chunk, defaults any) {
	if isJSON {
		return splitJSON(text)
	}
	return splitTOML(text)
}

const header = "[[services]]"

func splitTOML(text []byte) (list []chunk, defaults any) {
	var begins []int
	if bytes.HasPrefix(text, []byte(header)) {
		begins = append(begins, 0)
	}
	for at := 0; ; {
		next := bytes.Index(text[at:], []byte("\n"+header))
		if next < 0 {
			break
		}
		at += next + 1
		begins = append(begins, at)
	}
	if len(begins) == 0 {
		return nil, nil
	}
	doc, faults := decode.TOML("", text[:begins[0]])
	if faults != nil {
		return nil, nil
	}
	defaults, have := doc.Root[defaultsKey]
	if have && len(doc.Root) > 1 || !have && len(doc.Root) > 0 {
		return nil, nil
	}
	return cutChunks(text, begins, append(begins[1:len(begins):len(begins)], len(text))), defaults
}

func splitJSON(text []byte) (list []chunk, defaults any) {
	begins, ends := decode.Spans(string(text), "services")
	if len(begins) == 0 {
		return nil, nil
	}
	defaults, ok := withoutServices(text, begins, ends)
	if !ok {
		return nil, nil
	}
	return cutChunks(text, begins, ends), defaults
}

// A placeholder stands for a service in what is left of a text in JSON. As a string it cannot
// become part of what is beside it.
const placeholder = "a service"

// withoutServices reports whether a text in JSON is a file with services there, whatever they are,
// and nothing else but defaults, which it returns.
func withoutServices(text []byte, begins, ends []int) (defaults any, ok bool) {
	var rest []byte
	last := 0
	for i, at := range begins {
		rest = append(append(rest, text[last:at]...), `"`+placeholder+`"`...)
		last = ends[i]
	}
	doc, faults := decode.JSON("", append(rest, text[last:]...))
	if faults != nil {
		return nil, false
	}
	keys := 1
	if _, ok := doc.Root[schemaKey].(string); ok {
		keys++
	}
	defaults = doc.Root[defaultsKey]
	if defaults != nil {
		keys++
	}
	list, _ := doc.Root["services"].([]any)
	ok = len(doc.Root) == keys && len(list) == len(begins) && !slices.ContainsFunc(list, func(v any) bool { return v != placeholder })
	return defaults, ok
}

// cutChunks returns the chunks that begin and end there.
func cutChunks(text []byte, begins, ends []int) []chunk {
	list := make([]chunk, len(begins))
	line, start, last := 1, 0, 0
	for i, at := range begins {
		between := text[last:at]
		if nl := bytes.LastIndexByte(between, '\n'); nl >= 0 {
			line += bytes.Count(between, []byte("\n"))
			start = last + nl + 1
		}
		list[i] = chunk{at, text[at:ends[i]], source.Position{Line: line, Col: at - start + 1}}
		last = at
	}
	return list
}

// chunkDefaults reads [defaults] of a file that is read in chunks. It returns false where there is
// something to say of it, which takes reading the file as a whole.
func (p *reading) chunkDefaults(rules Rules, v any) bool {
	if v == nil {
		return true
	}
	r := rules.newReader(source.At(defaultsKey))
	readDefaults(r, v, p)
	return len(r.Faults(nil)) == 0
}

// mixed returns the checksum of a service that is read with such defaults: with others
// it is another service.
func mixed(text []byte, defaults any) [sha256.Size]byte {
	sum := sha256.Sum256(text)
	if defaults == nil {
		return sum
	}
	for i, b := range sha256.Sum256(fmt.Appendf(nil, "%#v", defaults)) {
		sum[i] ^= b
	}
	return sum
}

// shareKnown makes services share checks with those of before.
func (p *reading) shareKnown(before KnownServices) {
	for _, m := range before {
		if m.service.HealthCheck != nil {
			p.share(m.service.HealthCheck)
		}
	}
}
