package statuspage

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/structtest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

var update = flag.Bool("update", false, "write openapi.json")

// An object is a JSON object. Its keys are written in order.
type object = map[string]any

// A writer generates schemas of Go types as encoding/json encodes them, with their comments as descriptions.
type writer struct {
	t       *testing.T
	schemas object
	types   map[string]reflect.Type
	said    map[string]string // comments, by "package.Type" and "package.Type.Field"
	read    map[string]bool   // packages whose comments were read
}

// openAPIOf returns the OpenAPI description of all answers.
func openAPIOf(t *testing.T) []byte {
	w := &writer{t: t, schemas: object{}, types: map[string]reflect.Type{}, said: map[string]string{}, read: map[string]bool{}}
	answer := func(summary string, schema object, parameters ...any) object {
		get := object{"summary": summary, "responses": object{
			"200": object{"description": "what is known, a second ago at most", "content": object{"application/json": object{"schema": schema}}},
			"400": object{"description": "the query is not understood: what to write instead, as plain text"},
			"403": object{"description": "the Host header has a name that is not this host's"},
			"405": object{"description": "the method is neither GET nor HEAD"},
			"503": object{"description": "too many different questions are asked at once, or nothing is known yet: ask again after Retry-After"},
		}}
		if len(parameters) > 0 {
			get["parameters"] = parameters
		}
		return object{"get": get}
	}
	parameter := func(name, description string, schema object) object {
		p := object{"name": name, "in": "query", "description": description, "schema": schema}
		if schema["type"] == "array" {
			p["explode"] = true
		}
		return p
	}
	text := object{"type": "string", "maxLength": maxWord}
	parameters := []any{
		parameter("namespace", "services of this namespace", text),
		parameter("service", "services with these names, patterns or labels, as svcproxy status takes them: web, prod/*, team=web", object{"type": "array", "items": text, "maxItems": maxPatterns}),
		parameter("state", "services an address or an endpoint of which is so; trouble: one that does not work as it should", object{"type": "string", "enum": report.FilterStates()}),
		parameter("q", "services with this in their name, description, labels or file; or with this address, their own or of an endpoint", text),
		parameter("after", "services behind this one, NAMESPACE/NAME", text),
		parameter("limit", "how many services at most; those of 100,000 endpoints and addresses are always enough", object{"type": "integer", "minimum": 1, "maximum": maxLimit, "default": defaultLimit}),
	}
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title": "svcproxy", "version": "1",
			"description": "The status of a host. Later versions of svcproxy add keys, and change or remove none below /api/v1.",
		},
		"paths": object{
			"/api/v1/status":   answer("What svcproxy status --problems -o json prints, with 50 problems at most", w.schema(reflect.TypeFor[control.Summary]())),
			"/api/v1/services": answer("Services by name, each as svcproxy status -o json prints it", w.schema(reflect.TypeFor[servicePage]()), parameters...),
			"/api/v1/files":    answer("Sources of services and their files, as svcproxy status -o json prints them", w.schema(reflect.TypeFor[[]source.Status]())),
		},
	}
	events := answer("Changes of endpoints, addresses, announcements, files, BGP sessions, the mode, the host and repairs as they are seen, once a second, as server-sent events: their data is a Change, "+
		"or {} with the event reset, after which all follows. Of an object that changed several times the last state is sent", w.schema(reflect.TypeFor[changes.Change]()),
		parameter("all", "begin with the state of everything", object{"type": "boolean"}),
		object{"name": "Last-Event-ID", "in": "header", "description": "of the last event that was read: those behind it follow", "schema": object{"type": "string"}})
	responses := events["get"].(object)["responses"].(object)
	responses["503"] = object{"description": "32 clients listen already, or there are more than 200,000 objects"}
	responses["200"] = object{"description": "a stream that ends when the client goes, or does not read for 10 s", "content": object{
		"text/event-stream": object{"schema": w.schema(reflect.TypeFor[changes.Change]())},
	}}
	doc["paths"].(object)["/api/v1/events"] = events
	doc["components"] = object{"schemas": w.schemas}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	fatal.If(t, enc.Encode(doc))
	return b.Bytes()
}

// schema returns the schema of a type.
func (w *writer) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case t == reflect.TypeFor[source.FileState]():
		return object{"type": "string", "enum": source.FileStates()}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()), t == reflect.TypeFor[netip.Addr]():
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.schema(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": w.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": w.schema(t.Elem())}
	case reflect.Struct:
		name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
		if other := w.types[name]; other != nil && other != t {
			w.t.Fatalf("%v and %v have the same name", other, t)
		}
		w.types[name] = t
		if w.schemas[name] == nil {
			w.schemas[name] = object{} // the type may be recursive
			w.schemas[name] = w.object(t)
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		return object{"type": "integer"}
	}
	w.t.Fatalf("no schema for %v", t)
	return nil
}

// object returns the schema of a struct, with the fields of those that it embeds.
func (w *writer) object(t reflect.Type) object {
	w.comments(t.PkgPath())
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if !f.IsExported() || f.Anonymous && !tagged || name == "-" {
			continue
		}
		owner := t // the struct that has the field
		for _, i := range f.Index[:len(f.Index)-1] {
			owner = owner.Field(i).Type
		}
		w.comments(owner.PkgPath())
		s := w.schema(f.Type)
		if said := w.said[owner.PkgPath()+"."+owner.Name()+"."+f.Name]; said != "" {
			s["description"] = said
		}
		optional := strings.Contains(options, "omit")
		if kind := f.Type.Kind(); !optional && (kind == reflect.Slice || kind == reflect.Map) {
			s["type"] = []string{s["type"].(string), "null"}
		}
		if !optional {
			required = append(required, name)
		}
		properties[name] = s
	}
	slices.Sort(required)
	return object{"type": "object", "description": w.said[t.PkgPath()+"."+t.Name()], "properties": properties, "required": required}
}

// comments reads the comments of a package.
func (w *writer) comments(pkg string) {
	if w.read[pkg] {
		return
	}
	w.read[pkg] = true
	dir := filepath.Join("../../..", strings.TrimPrefix(pkg, "svcproxy.dev/svcproxy/"))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	fatal.If(w.t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		fatal.If(w.t, err)
		ast.Inspect(f, func(n ast.Node) bool { return w.commentsOf(pkg, n) })
	}
}

// commentsOf records the comments of a type and its fields.
func (w *writer) commentsOf(pkg string, n ast.Node) bool {
	decl, ok := n.(*ast.GenDecl)
	if !ok || decl.Tok != token.TYPE {
		return true
	}
	for _, spec := range decl.Specs {
		s := spec.(*ast.TypeSpec)
		name := pkg + "." + s.Name.Name
		w.said[name] = oneLine(decl.Doc, s.Doc)
		in, ok := s.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range in.Fields.List {
			for _, id := range f.Names {
				w.said[name+"."+id.Name] = oneLine(f.Doc, f.Comment)
			}
		}
	}
	return false
}

func oneLine(groups ...*ast.CommentGroup) string {
	var words []string
	for _, g := range groups {
		words = append(words, strings.Fields(g.Text())...)
	}
	return strings.Join(words, " ")
}

// openapi.json matches the types of the answers.
func TestOpenAPIIsUpToDate(t *testing.T) {
	want := openAPIOf(t)
	if *update {
		fatal.If(t, os.WriteFile("openapi.json", want, 0o644))
		return
	}
	if !bytes.Equal(want, openAPI) {
		t.Error("openapi.json is not as the types are; run go test ./cmd/internal/statuspage -update, and see that no key has gone")
	}
}

// A checker reports where a value does not match a schema. It supports the keywords that openapi.json uses.
type checker struct {
	doc    object
	faults []string
}

func newChecker(t *testing.T) *checker {
	c := &checker{}
	fatal.If(t, json.Unmarshal(openAPI, &c.doc))
	return c
}

// answer returns the schema of the answer of a path.
func (c *checker) answer(path string) object {
	at := c.doc
	for _, key := range []string{"paths", path, "get", "responses", "200", "content", "application/json", "schema"} {
		at = at[key].(object)
	}
	return at
}

func (c *checker) check(at string, schema object, v any) {
	if ref, ok := schema["$ref"].(string); ok {
		schema = c.doc["components"].(object)["schemas"].(object)[path.Base(ref)].(object)
	}
	is := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number", reflect.Slice: "array", reflect.Map: "object", reflect.Invalid: "null"}[reflect.ValueOf(v).Kind()]
	if n, ok := v.(float64); ok && n == float64(int64(n)) && !slices.Contains(typesOf(schema), "number") {
		is = "integer"
	}
	if !slices.Contains(typesOf(schema), is) {
		c.faults = append(c.faults, fmt.Sprintf("%s is of type %s, want %v", at, is, schema["type"]))
		return
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		c.faults = append(c.faults, fmt.Sprintf("%s is %q, want one of %v", at, v, enum))
	}
	switch v := v.(type) {
	case string:
		if _, err := time.Parse(time.RFC3339, v); schema["format"] == "date-time" && err != nil {
			c.faults = append(c.faults, at+" is no time: "+v)
		}
	case []any:
		for i, e := range v {
			c.check(fmt.Sprintf("%s[%d]", at, i), schema["items"].(object), e)
		}
	case object:
		c.object(at, schema, v)
	}
}

func (c *checker) object(at string, schema, v object) {
	properties, _ := schema["properties"].(object)
	for key, value := range v {
		switch s, known := properties[key].(object); {
		case known:
			c.check(at+"."+key, s, value)
		case schema["additionalProperties"] != nil:
			c.check(at+"."+key, schema["additionalProperties"].(object), value)
		default:
			c.faults = append(c.faults, at+"."+key+" is not described")
		}
	}
	required, _ := schema["required"].([]any)
	for _, key := range required {
		if _, there := v[key.(string)]; !there {
			c.faults = append(c.faults, at+"."+key.(string)+" is missing")
		}
	}
}

func typesOf(schema object) []string {
	switch t := schema["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var list []string
		for _, one := range t {
			list = append(list, one.(string))
		}
		return list
	}
	return nil
}

// is checks a value, encoded as JSON.
func (c *checker) is(t *testing.T, path string, body []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	c.faults = nil
	c.check("", c.answer(path), v)
	for _, f := range c.faults {
		t.Errorf("%s: %s", path, f)
	}
}

// Values with every field set, and with none, match their schemas.
func TestOpenAPIDescribesAllValues(t *testing.T) {
	c := newChecker(t)
	status := structtest.Filled[control.Summary]()
	status.Files = map[source.FileState]int{source.Held: 1}
	status.Broken[0].State = source.Stale
	files := structtest.Filled[[]source.Status]()
	for _, list := range [][]source.FileStatus{(*files)[0].Files, (*files)[0].Objects} {
		list[0].State = source.RolledBack
	}
	for path, values := range map[string][]any{
		"/api/v1/status":   {status, control.Summary{}},
		"/api/v1/services": {structtest.Filled[servicePage](), servicePage{Services: []report.ServiceStatus{{}}}},
		"/api/v1/files":    {files, []source.Status{{}}},
	} {
		for _, v := range values {
			body, err := json.Marshal(v)
			fatal.If(t, err)
			c.is(t, path, body)
		}
	}
}

// A value that does not match is reported.
func TestOpenAPIRefuses(t *testing.T) {
	c := newChecker(t)
	for body, want := range map[string]string{
		`{"services":[],"found":1.5}`:              ".found is of type number, want integer",
		`{"services":[],"found":1,"more":2}`:       ".more is not described",
		`{"services":null}`:                        ".found is missing",
		`{"services":[{"namespace":3}],"found":1}`: ".services[0].namespace is of type integer, want string",
	} {
		var v any
		fatal.If(t, json.Unmarshal([]byte(body), &v))
		c.faults = nil
		c.check("", c.answer("/api/v1/services"), v)
		if !slices.Contains(c.faults, want) {
			t.Errorf("%s: %q, want %q", body, c.faults, want)
		}
	}
}
