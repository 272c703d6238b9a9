package decode

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

func faultTexts(faults []source.Fault) string {
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

func TestSyntaxFaults(t *testing.T) {
	const dense = "more keys and brackets than a file of this size can need\n"
	tests := []struct{ name, file, in, want string }{
		{"good TOML", "a.toml", "a = 1\n", ""},
		{"good JSON", "a.json", `{"a": 1}`, ""},
		{"byte order mark", "a.toml", "\ufeffa = = 1\n", "a.toml:1:5: expected value but found '=' instead\n"},
		{"no value", "a.toml", "b = 1\n\na = \n", "a.toml:3:5: expected value but found '\\n' instead\n"},
		{"key twice", "a.toml", "a = 1\nb = 2\na = 3\n", "a.toml:3:1: Key 'a' has already been defined.\n"},
		{"control character in a key", "a.toml", "\"a\\u001b[1m\" = 1\n\"a\\u001b[1m\" = 1\n", "a.toml:2:2: Key '\"a\\u001b[1m\"' has already been defined.\n"},
		{"not UTF-8", "a.toml", "a = 1\nb = \"\xff\"\n", "a.toml:2:6: byte 0xff is not UTF-8\n"},
		{"number too large", "a.toml", "a = 99999999999999999999\n", "a.toml:1:5: 99999999999999999999 is out of range for int64\n"},
		{"JSON without comma", "a.json", "{\n  \"a\": 1\n  \"b\": 2\n}", "a.json:3:3: invalid character '\"' after object key:value pair; a comma is missing\n"},
		{"JSON with a comma too many", "a.json", "{\"a\": [1,]}", "a.json:1:9: a comma behind the last element; JSON has commas only between elements\n"},
		{"JSON cut off", "a.json", "{\"a\": [1,\n", "a.json:2:1: the text ends within a value\n"},
		{"JSON cut off in a string", "a.json", "{\"a\": \"b", "a.json:1:9: the text ends within a value\n"},
		{"JSON of white space", "a.json", " \n", "a.json:2:1: the text ends within a value\n"},
		{"JSON with more behind it", "a.json", "{}\n{}", "a.json:2:1: invalid character '{' after top-level value\n"},
		{"JSON list", "a.json", "\n [{}]", "a.json:2:2: the file is a list; want an object, as in {\"services\": []}\n"},
		{"JSON keys twice", "a.json", "{\"a\": 1,\n \"b\": {\"c\": 1, \"c\": 2}, \"a\": 3}", "a.json:2:16: key \"c\" is already in this object\na.json:2:25: key \"a\" is already in this object\n"},
		{"JSON key twice by an escape", "a.json", `{"a": 1, "\u0061": 2}`, "a.json:1:10: key \"a\" is already in this object\n"},
		{"nested lists", "a.toml", "a = " + strings.Repeat("[", 1<<20), "a.toml:1:36: nested deeper than 32 levels\n"},
		{"nested JSON", "a.json", strings.Repeat(`{"a":`, 1<<20), "a.json:1:81: nested deeper than 32 levels\n"},
		{"dotted keys", "a.toml", "a" + strings.Repeat(".a", 1<<20) + " = 1\n", "a.toml:1:66: nested deeper than 32 levels\n"},
		{"dotted header", "a.toml", "[a" + strings.Repeat(".a", 1<<20) + "]\n", "a.toml:1:67: nested deeper than 32 levels\n"},
		{"dotted keys in tables", "a.toml", strings.Repeat("a.b.c.d = {", 1<<16), "a.toml:1:72: nested deeper than 32 levels\n"},
		{"values without text", "a.toml", "a = [" + strings.Repeat("1,", 1<<20) + "]", "a.toml:1:701056: " + dense},
		{"tables without text", "a.toml", strings.Repeat("[[a]]\n", 1<<20), "a.toml:394217:4: " + dense},
		{"JSON tables without text", "a.json", `{"a": [` + strings.Repeat("{},", 1<<20) + "{}]}", "a.json:1:592829: " + dense},
		{"dotted keys without text", "a.toml", strings.Repeat("a.b.c.d.e.f=0\n", 1<<20), "a.toml:183701:10: " + dense},
		{"a table by dots and a value", "a.toml", "ports.http = 8080\nports = 'rubbish'\n", "a.toml:2:1: this key is a table already, by a key with a dot; leave one of them out\n"},
		{"a table by dots and a list", "a.toml", "[[s]]\np.h = 1\n\"p\" = []\n", "a.toml:3:1: this key is a table already, by a key with a dot; leave one of them out\n"},
		{"the same below", "a.toml", "x = { a.b.c = 1, a.b = 2 }\n", "a.toml:1:18: this key is a table already, by a key with a dot; leave one of them out\n"},
		{"the same in another table", "a.toml", "a.b = 1\n[x]\na = 1\n[[y]]\na.b = 1\n[[y]]\na = 1\nz = [{ a.b = 1 }, { a = 1 }]\n", ""},
		{"the same and a syntax fault", "a.toml", "a.b = 1\na = 2\nc = \n", "a.toml:3:5: expected value but found '\\n' instead\n"},
		{"brackets in strings", "a.toml", "a = '" + strings.Repeat("[", 99) + "' # " + strings.Repeat("{", 99) + "\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := faultTexts(parseAny(tt.file, tt.in)); got != tt.want {
				t.Errorf("faults\n got: %swant: %s", got, tt.want)
			}
		})
	}
}

func parseAny(file, text string) []source.Fault {
	_, faults := decodeAny(file, text)
	return faults
}

func decodeAny(file, text string) (*Doc, []source.Fault) {
	if strings.HasSuffix(file, ".json") {
		return JSON(file, []byte(text))
	}
	return TOML(file, []byte(text))
}

const places = `# comment with [[services]] and "quotes
top = 1
a.b . "c d" = 2
'lit.eral' = """
[[services]] # not one
""""
[[services]]
name = "x" # ]
list = [ 1, # {
  { p = 1, q.r = [ 'y' ] },
  """z"""", 1979-05-27 07:32:00, ]
[services.sub]
k = 'v'
[services.sub.deep]
k = 1
[[services]]
"na\u006de" = 'C:\'
[[services.ports]]
port = 1
[[services.ports]]
port = 2
	[ "spaced" . out ]
inline = { a = {}, b = [ ],
  c = 1 }
`

func TestPositionsTOML(t *testing.T) {
	tests := []struct {
		path       source.Path
		value, key string
	}{
		{source.At("top"), "2:7", "2:1"},
		{source.At("a"), "3:1", "3:1"},
		{source.At("a", "b"), "3:3", "3:3"},
		{source.At("a", "b", "c d"), "3:15", "3:7"},
		{source.At("lit.eral"), "4:14", "4:1"},
		{source.At("services"), "7:1", "7:1"},
		{source.At("services", 0), "7:1", "7:1"},
		{source.At("services", 0, "name"), "8:8", "8:1"},
		{source.At("services", 0, "list", 0), "9:10", "9:10"},
		{source.At("services", 0, "list", 1), "10:3", "10:3"},
		{source.At("services", 0, "list", 1, "q"), "10:12", "10:12"},
		{source.At("services", 0, "list", 1, "q", "r", 0), "10:20", "10:20"},
		{source.At("services", 0, "list", 2), "11:3", "11:3"},
		{source.At("services", 0, "list", 3), "11:13", "11:13"},
		{source.At("services", 0, "sub"), "12:1", "12:1"},
		{source.At("services", 0, "sub", "k"), "13:5", "13:1"},
		{source.At("services", 0, "sub", "deep", "k"), "15:5", "15:1"},
		{source.At("services", 1), "16:1", "16:1"},
		{source.At("services", 1, "name"), "17:15", "17:1"},
		{source.At("services", 1, "ports", 0), "18:1", "18:1"},
		{source.At("services", 1, "ports", 1, "port"), "21:8", "21:1"},
		{source.At("spaced", "out"), "22:2", "22:2"},
		{source.At("spaced", "out", "inline", "b"), "23:24", "23:20"},
		{source.At("spaced", "out", "inline", "c"), "24:7", "24:3"},
		// What is not there is placed at what should hold it.
		{source.At("services", 1, "vips", 3), "16:1", "16:1"},
		{source.At("services", 2), "7:1", "7:1"},
		{source.At("none"), "1:1", "1:1"},
	}
	doc, faults := TOML("a.toml", []byte(places))
	if faults != nil {
		t.Fatal(faults)
	}
	for _, tt := range tests {
		n := doc.nodes([]source.Path{tt.path})[0]
		value, key := doc.place(n.val).String(), doc.place(n.key).String()
		if value != "a.toml:"+tt.value || key != "a.toml:"+tt.key {
			t.Errorf("%s: value at %s, key at %s; want %s and %s", tt.path, value, key, tt.value, tt.key)
		}
	}
}

func TestPositionsJSON(t *testing.T) {
	text := "{\n \"a\\\"b\": [1, {\"c\" :\n  null}, \"]\"],\n\t\"services\": [ {\"n\": -1.5e3\n}, {} ]\n}"
	doc, faults := JSON("a.json", []byte(text))
	if faults != nil {
		t.Fatal(faults)
	}
	tests := []struct {
		path       source.Path
		value, key string
	}{
		{nil, "1:1", "1:1"},
		{source.At(`a"b`), "2:10", "2:2"},
		{source.At(`a"b`, 1), "2:14", "2:14"},
		{source.At(`a"b`, 1, "c"), "3:3", "2:15"},
		{source.At(`a"b`, 2), "3:10", "3:10"},
		{source.At("services", 0, "n"), "4:22", "4:17"},
		{source.At("services", 1), "5:4", "5:4"},
	}
	for _, tt := range tests {
		n := doc.nodes([]source.Path{tt.path})[0]
		value, key := doc.place(n.val).String(), doc.place(n.key).String()
		if value != "a.json:"+tt.value || key != "a.json:"+tt.key {
			t.Errorf("%s: value at %s, key at %s; want %s and %s", tt.path, value, key, tt.value, tt.key)
		}
	}
}

func TestElementsOfLists(t *testing.T) {
	tests := []struct {
		name, file, in string
		want           []string
	}{
		{"headers", "a.toml", "\ufeff# x\n[[services]]\nn = '''\n[[services]]\n'''\n\n  [[ services ]]\n[[\"services\"]]", []string{"2:1", "7:3", "8:1"}},
		{"inline", "a.toml", "services = [ {}, \n # {}\n{} ]", []string{"1:14", "3:1"}},
		{"another list", "a.toml", "[[service]]\n", nil},
		{"JSON", "a.json", "{\"x\": [{}],\n \"services\": [{\"a\": {}},{\n}, {}]}", []string{"2:15", "2:25", "3:4"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc, faults := decodeAny(tt.file, tt.in)
			if faults != nil {
				t.Fatal(faults)
			}
			var got []string
			for _, p := range doc.Elements("services") {
				got = append(got, fmt.Sprintf("%d:%d", p.Line, p.Col))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// pathsOf returns the paths of all values at and below v, which is at path.
func pathsOf(path source.Path, v any) []source.Path {
	paths := []source.Path{path}
	below := func(step any, v any) {
		paths = append(paths, pathsOf(append(slices.Clone(path), source.At(step)...), v)...)
	}
	switch v := v.(type) {
	case map[string]any:
		for key, v := range v {
			below(key, v)
		}
	case []any:
		for i, v := range v {
			below(i, v)
		}
	case []map[string]any:
		for i, v := range v {
			below(i, v)
		}
	}
	return paths
}

// checkPlaces fails unless every value of the tree has a place of its own.
func checkPlaces(t *testing.T, d *Doc) {
	t.Helper()
	paths := pathsOf(nil, d.Root)
	seen := map[*node]bool{}
	for i, n := range d.nodes(paths) {
		if seen[n] || !n.found && len(paths[i]) > 0 {
			t.Fatalf("no place for %s in %q", paths[i], d.data)
		}
		seen[n] = true
	}
}

func checkDoc(t *testing.T, doc *Doc, faults []source.Fault) {
	t.Helper()
	for _, f := range faults {
		if text := f.String(); strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) || len(text) > 400 {
			t.Errorf("fault does not fit on a line: %q", text)
		}
	}
	if doc == nil {
		if len(faults) == 0 {
			t.Error("neither a document nor a fault")
		}
		return
	}
	if !slices.ContainsFunc(pathsOf(nil, doc.Root), withEmptyKey) {
		checkPlaces(t, doc)
	}
}

// withEmptyKey reports whether a path leads through an empty key. BurntSushi/toml
// 1.6.0 loses elements of arrays below a dotted one, as in a.”=[1,{c=2}]. It does no
// harm: no key that is known is empty.
func withEmptyKey(path source.Path) bool {
	return slices.ContainsFunc(path, func(s source.Step) bool { return s.Index < 0 && s.Key == "" })
}

func FuzzTOML(f *testing.F) {
	for _, seed := range []string{"", "\f", places, "a = [[1], [{b = 1}]]", "a=\"\"\"\\\n \"\"\"\nb=''", "[a]\r\nb = {c.d = 1, c.e = '''x'''}", "\"\" = 1", "a.\"\" = {}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, faults := TOML("f.toml", data)
		checkDoc(t, doc, faults)
	})
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"a": [1, -2.5e3, null, true, "\u00e4\ud83d\ude00\/"], "": {}}`, `[`, `{"a":1}x`, `{"a" : {"b":[[],{}]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, faults := JSON("f.json", data)
		checkDoc(t, doc, faults)
	})
}
