package read_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

var update = flag.Bool("update", false, "write what the tests got as what they want")

const faultsFile = "testdata/faults.txt"

// A badInput is one case of testdata/faults.txt:
//
//	== name.toml, or name.json
//	the text
//	-- or, where the text is a string as Go quotes it, -- quoted
//	what is wrong with it, without the name of the file
type badInput struct {
	name, text, mark, want string
}

func (in badInput) String() string {
	return "== " + in.name + "\n" + in.text + in.mark + "\n" + in.want
}

func (in badInput) data(t *testing.T) string {
	t.Helper()
	if in.mark == "--" {
		return in.text
	}
	text, err := strconv.Unquote(strings.TrimSpace(in.text))
	if err != nil {
		t.Fatalf("%s: %v", in.name, err)
	}
	return text
}

var caseText = regexp.MustCompile(`(?s)^(\S[^\n]*\.(?:toml|json))\n(.*?)(--(?: quoted)?)\n(.*)$`)

func badInputs(t *testing.T) []badInput {
	t.Helper()
	data, err := os.ReadFile(faultsFile)
	fatal.If(t, err)
	var cases []badInput
	for _, part := range strings.Split("\n"+string(data), "\n== ")[1:] {
		part = strings.TrimSuffix(part, "\n") + "\n"
		m := caseText.FindStringSubmatch(part)
		if m == nil {
			t.Fatalf("not a case:\n%s", part)
		}
		cases = append(cases, badInput{m[1], m[2], m[3], m[4]})
	}
	return cases
}

// inMode is the check of a host that has no schedulers, and no direct return.
func inMode(s *source.Service) (list []source.Problem) {
	if s.Scheduler != "" {
		list = append(list, source.Problem{Path: source.At("scheduler"), Msg: "no schedulers here", Hint: "leave it out"})
	}
	if s.Forward.Method == source.ForwardDirect {
		list = append(list, source.Problem{Path: source.At("forward"), Msg: "no direct return here", Hint: "leave it out"})
	}
	return list
}

var hostRules = read.Rules{Limits: read.Limits{FileSize: 1024, Services: 3, Endpoints: 4, Ports: 3}, Check: inMode}

// keyLists puts words in the places of the lists of all keys, which a new key is added to.
var keyLists = func() *strings.Replacer {
	root := read.Schema().Properties
	list := func(s decode.Schema) string {
		var keys []string
		for _, p := range s.Properties {
			keys = append(keys, p.Key)
		}
		return source.Either(keys)
	}
	service := root[1].Schema.Items
	check := service.Properties[slices.IndexFunc(service.Properties, func(p decode.Property) bool { return p.Key == "health_check" })].Schema
	return strings.NewReplacer(list(*service), "KEYS OF A SERVICE", list(root[2].Schema), "KEYS OF DEFAULTS", list(check), "KEYS OF A HEALTH CHECK")
}()

// faultsOf returns what is wrong with a text, a line each, without its name.
func faultsOf(name, text string) string {
	_, faults := hostRules.Parse(name, []byte(text))
	var b strings.Builder
	for _, f := range faults {
		b.WriteString(strings.TrimPrefix(strings.TrimPrefix(f.String(), name+":"), " ") + "\n")
	}
	return keyLists.Replace(b.String())
}

// Every fault that a file can have, with its place and its words.
func TestBadInputs(t *testing.T) {
	cases := badInputs(t)
	if len(cases) < 280 {
		t.Errorf("%d cases", len(cases))
	}
	names := map[string]bool{}
	var out []string
	for _, in := range cases {
		got := faultsOf(in.name, in.data(t))
		switch {
		case names[in.name]:
			t.Errorf("%s is there twice", in.name)
		case got != in.want && !*update:
			t.Errorf("%s:\n%s\n got: %s\nwant: %s", in.name, in.text, got, in.want)
		case got == "":
			t.Errorf("%s has no fault", in.name)
		}
		names[in.name] = true
		in.want = got
		out = append(out, in.String())
	}
	if *update {
		fatal.If(t, os.WriteFile(faultsFile, []byte(strings.Join(out, "\n")), 0o644))
	}
}

// position matches where a fault is, which differs from language to language.
var position = regexp.MustCompile(`(?m)^\d+:\d+: `)

// onlyTOML matches faults of what JSON does not have, or means otherwise: dates,
// whole numbers with a fraction (Go writes 80.0 as 80), and "$schema".
var onlyTOML = regexp.MustCompile(`a date or time|80\.0|\$schema`)

// What is wrong in TOML is wrong in JSON, in the same words.
func TestSameFaultsInJSON(t *testing.T) {
	tried := 0
	for _, in := range badInputs(t) {
		doc, _ := decode.TOML(in.name, []byte(in.data(t)))
		if doc == nil || strings.HasSuffix(in.name, ".json") || strings.Contains(in.name, ".endpoints.") || in.mark != "--" || onlyTOML.MatchString(in.want) {
			continue
		}
		text, err := json.Marshal(doc.Root)
		fatal.If(t, err)
		tried++
		got, want := words(faultsOf("x.json", string(text))), words(in.want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\n got: %q\nwant: %q", in.name, text, got, want)
		}
	}
	if tried < 70 {
		t.Errorf("only %d cases tried", tried)
	}
}

// words returns the lines of faults without their places, sorted.
func words(faults string) []string {
	lines := strings.Split(position.ReplaceAllString(faults, ""), "\n")
	slices.Sort(lines)
	return lines
}

// elsewhere are the messages that no file alone can bring about, and why.
var elsewhere = map[string]string{
	"an address with a zone":                                   "the text of one is a fault already; Validate is for other sources too",
	"an IPv4 address written as IPv6":                          "the same",
	"is not a range in its shortest form":                      "the same",
	"is the same as":                                           "of settings",
	"scheduler maglev hashes nothing":                          "files have a default; Validate is for other sources too",
	"the path has":                                             "of files larger than the limit here; tested in source",
	"the argument has":                                         "the same",
	"more keys and brackets than a file of this size can need": "of files larger than the limit here; tested in decode",
	"a table has more than":                                    "the same",
	"the text has more than":                                   "the same",
	"keys and tables at the top":                               "the same",
	"more keys are in their object twice":                      "the same; tested by TestManyKeysTwice",
	"the file has more faults; the first":                      "tested by TestManyFaults",
	"found are shown":                                          "the same",
	"of a type that no key has":                                "the parsers make no others",
	"svcproxy service file":                                    "the title of the schema",
	"the TOML parser cannot read this file":                    "of a parser that panics",
	"unexpected end":                                           "of the JSON library, which we look for",
	"strings cannot contain newlines":                          "of the TOML parser, said otherwise",
	"the text is not JSON":                                     "of two parsers of one library that disagree",
}

// A message that is new or has changed needs a case in testdata/faults.txt.
func TestEveryMessageHasACase(t *testing.T) {
	data, err := os.ReadFile(faultsFile)
	fatal.If(t, err)
	used := 0
	for _, path := range []string{"rules.go", "parse.go", "chunks.go", "defaults.go", "health.go", "hints.go", "list.go", "ports.go", "schema.go", "service.go", "warn.go", "../validate.go", "../validator.go", "../validate_health.go", "../validate_traffic.go", "../decode/doc.go", "../decode/address.go", "../decode/guess.go", "../decode/kinds.go", "../decode/reader.go", "../decode/parse.go", "../decode/scan.go", "../decode/size.go", "../decode/table.go"} {
		for _, words := range messagesOf(t, path) {
			switch {
			case elsewhere[words] != "":
				used++
			case !strings.Contains(string(data), words):
				t.Errorf("%s: no case has %q", path, words)
			}
		}
	}
	if used < len(elsewhere) {
		t.Errorf("only %d messages are tested elsewhere", used)
	}
}

var (
	comment = regexp.MustCompile(`(?m)//.*$|regexp\.MustCompile\(.*`)
	literal = regexp.MustCompile("\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`]*`")
	verb    = regexp.MustCompile(`%[a-z0-9]+`)
)

// messagesOf returns the texts with a space in them that a source file has, but
// for what is filled in: they are what it puts into messages.
func messagesOf(t *testing.T, path string) (pieces []string) {
	t.Helper()
	code, err := os.ReadFile(path)
	fatal.If(t, err)
	for _, quoted := range literal.FindAllString(comment.ReplaceAllString(string(code), ""), -1) {
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %s: %v", path, quoted, err)
		}
		for _, piece := range verb.Split(text, -1) {
			if piece = strings.Trim(piece, " \"/;:[]\t\r\n"); strings.Contains(piece, " ") {
				pieces = append(pieces, piece)
			}
		}
	}
	return pieces
}
