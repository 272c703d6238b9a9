package read

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// listed is the text of services with these many endpoints each, in one of the languages.
func listed(isJSON bool, endpoints ...int) []byte {
	var b strings.Builder
	for i, n := range endpoints {
		list := make([]string, n)
		for j := range list {
			list[j] = fmt.Sprintf("%q", fmt.Sprintf("10.%d.%d.%d", i%250+1, i/250+j/250, j%250+1))
		}
		all := strings.Join(list, ", ")
		if isJSON {
			fmt.Fprintf(&b, ",\n\t{\"name\": \"s%d\", \"vips\": [\"10.96.%d.%d\"], \"ports\": [{\"port\": 80}],\n\t\"endpoints\": [%s]}", i, i/250, i%250+1, all)
		} else {
			fmt.Fprintf(&b, "[[services]]\nname = \"s%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ port = 80 }]\nendpoints = [%s]\n\n", i, i/250, i%250+1, all)
		}
	}
	if isJSON {
		return []byte("{\"services\": [" + strings.TrimPrefix(b.String(), ",") + "]}\n")
	}
	return []byte("# services\n" + b.String())
}

// Of a file that changes, what has not changed is not read again.
func TestOnlyChangedServicesAreRead(t *testing.T) {
	for _, path := range []string{"a.toml", "a.json"} {
		t.Run(path, func(t *testing.T) {
			isJSON := path == "a.json"
			before, faults, known := Rules{}.ParseNew(context.Background(), path, listed(isJSON, 3, 2, 1), nil)
			if faults != nil || len(known) != 3 {
				t.Fatalf("%d services known, faults %v; want 3 and none", len(known), faults)
			}
			after, faults, known := Rules{}.ParseNew(context.Background(), path, listed(isJSON, 3, 4, 1), known)
			if faults != nil || len(after) != 3 || len(known) != 3 {
				t.Fatalf("%d services, %d known, faults %v; want 3, 3 and none", len(after), len(known), faults)
			}
			if after[0] != before[0] || after[2] != before[2] || len(after[1].Endpoints) != 4 {
				t.Errorf("services before and after:\n%v\n%v", before, after)
			}
		})
	}
}

// Neither a warning nor a fault in one service makes the others be read again,
// and both stand where they are now.
func TestFaultsLeaveOtherServicesUnread(t *testing.T) {
	text := string(listed(false, 1, 1, 1))
	warned := strings.Replace(text, "name = \"s1\"", "name = \"s1\"\nsession_affinity_timeout = \"10s\"", 1)
	before, faults, known := Rules{}.ParseNew(context.Background(), "a.toml", []byte(warned), nil)
	if len(before) != 3 || len(faults) != 1 || len(known) != 3 {
		t.Fatalf("%d services, %d known, faults %v; want 3, 3 and one", len(before), len(known), faults)
	}
	after, faults, known := Rules{}.ParseNew(context.Background(), "a.toml", []byte("\n"+warned+"scheduler = \"rr\"\n"), known)
	if len(after) != 3 || len(known) != 3 || !reflect.DeepEqual(after[1].Endpoints, before[1].Endpoints) || &after[1].Endpoints[0] != &before[1].Endpoints[0] {
		t.Errorf("%d services, %d known; want 3 and 3, the second as before", len(after), len(known))
	}
	if got, want := fmt.Sprint(faults), `[a.toml:11:28: warning: session_affinity_timeout does nothing; it needs session_affinity = "client_ip"]`; got != want {
		t.Errorf("faults %s; want %s", got, want)
	}
	services, faults, known := Rules{}.ParseNew(context.Background(), "a.toml", []byte(warned+"prot = 1\n"), known)
	if services != nil || len(faults) != 2 || len(known) != 2 {
		t.Errorf("%d services, %d known, faults %v; want none, 2 and two", len(services), len(known), faults)
	}
}

// A service that has only moved is where it is now.
func TestKnownServiceMoves(t *testing.T) {
	for _, path := range []string{"a.toml", "a.json"} {
		isJSON := path == "a.json"
		before, _, known := Rules{}.ParseNew(context.Background(), path, listed(isJSON, 1, 1), nil)
		text := append([]byte("\n\n"), listed(isJSON, 1, 1)...)
		after, _, _ := Rules{}.ParseNew(context.Background(), path, text, known)
		whole, _ := Rules{}.parseWhole(path, text, isJSON)
		if !reflect.DeepEqual(after, whole) {
			t.Errorf("%s: got %v; want %v", path, after, whole)
		}
		if got, want := after[1].Pos.Line, before[1].Pos.Line+2; got != want {
			t.Errorf("%s: in line %d; want %d", path, got, want)
		}
	}
}

// What a host can do may change, by another mode.
func TestKnownServiceIsCheckedAgain(t *testing.T) {
	refuse := false
	rules := Rules{Check: func(*source.Service) []source.Problem {
		if refuse {
			return []source.Problem{{Path: source.At("name"), Msg: "not here"}}
		}
		return nil
	}}
	text := listed(false, 1, 1)
	_, faults, known := rules.ParseNew(context.Background(), "a.toml", text, nil)
	if faults != nil || len(known) != 2 {
		t.Fatalf("%d services known, faults %v; want 2 and none", len(known), faults)
	}
	refuse = true
	if services, faults, _ := rules.ParseNew(context.Background(), "a.toml", text, known); services != nil || len(faults) != 2 {
		t.Errorf("services %v, faults %v; want none and two", services, faults)
	}
}

// Which files are read in chunks.
func TestWhichFilesAreReadInChunks(t *testing.T) {
	const (
		toml = "[[services]]\nname = \"%s\"\nports = [{ port = 80 }]\nvips = [\"10.96.0.%d\"]\nendpoints = []\n"
		json = `{"name": "%s", "ports": [{"port": 80}], "vips": ["10.96.0.%d"], "endpoints": []}`
	)
	a, b := fmt.Sprintf(toml, "a", 1), fmt.Sprintf(toml, "b", 2)
	x, y := fmt.Sprintf(json, "a", 1), fmt.Sprintf(json, "b", 2)
	tests := []struct {
		name, path, text string
		want             string // where services stand, and what is wrong; "" if it is read as a whole
	}{
		{"headers", "a.toml", a + b, "1:1 6:1"},
		{"a byte order mark", "a.toml", "\ufeff" + a + b, "1:1 6:1"},
		{"comments", "a.toml", "# [[services]]\n\n" + a + "  # x\n" + b, "3:1 9:1"},
		{"carriage returns", "a.toml", strings.ReplaceAll(a+b, "\n", "\r\n"), "1:1 6:1"},
		{"one service", "a.toml", a, ""},
		{"other headers too", "a.toml", a + "[[ services ]]\n" + strings.TrimPrefix(b, header+"\n") + b, ""},
		{"a header in a string", "a.toml", a + b + "scheduler = '''\n[[services]]\n'''\n", ""},
		{"a key above", "a.toml", "x = 1\n" + a + b, ""},
		{"defaults", "a.toml", "[defaults.health_check]\ntype = 'tcp'\n" + a + b, "3:1 8:1"},
		{"defaults that warn", "a.toml", "[defaults.health_check]\ntype = 'none'\n" + a + b, ""},
		{"defaults at fault", "a.toml", "[defaults.health_check]\ntype = 'x'\n" + a + b, ""},
		{"defaults and another table", "a.toml", "[defaults]\n[x]\n" + a + b, ""},
		{"defaults between", "a.toml", a + "[defaults.health_check]\ntype = 'tcp'\n" + b, ""},
		{"defaults behind", "a.toml", a + b + "[defaults.health_check]\ntype = 'tcp'\n", ""},
		{"defaults twice", "a.toml", "[defaults]\n" + a + b + "[defaults]\n", ""},
		{"a table between", "a.toml", a + "[x]\n" + b, ""},
		{"twice the same table", "a.toml", a + "[x]\n" + b + "[x]\n", "a.toml:12:2: Key 'x' has already been defined."},
		{"a fault", "a.toml", a + b + "node_port = 1\n", "a.toml:11:1: unknown key \"node_port\"; it belongs to a port: ports = [{ ... }]"},
		{"a warning", "a.toml", a + b + "session_affinity_timeout = \"10s\"\n", "1:1 6:1 a.toml:11:28: warning: session_affinity_timeout does nothing; it needs session_affinity = \"client_ip\""},
		{"cut off", "a.toml", a + b + "external_ips = [", "a.toml:11:16: unexpected EOF; expected value"},
		{"cut off before the last", "a.toml", a + "external_ips = [\n" + b, "a.toml:7:3: a header within a value; close the list or table above it"},
		{"a byte that is not UTF-8", "a.toml", a + b + "# \xff\n", ""},

		{"objects", "a.json", `{"services": [` + x + ",\n" + y + "]}", "1:15 2:1"},
		{"on lines", "a.json", "{\n\"services\" :\n[ \n " + x + "\n ,\n " + y + " ] \n}\n", "4:2 6:2"},
		{"a schema", "a.json", `{"$schema": "x", "services": [` + x + "," + y + "]}", "1:31 1:110"},
		{"brackets in a string", "a.json", `{"services": [` + x + `,{"external_ips": [], "name": "]}\"}"}]}`, "a.json:1:94: key \"ports\" is missing " +
			"a.json:1:123: the name \"]}\\\"}\" is not a DNS label; want 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{"a schema of a kind that is none", "a.json", `{"$schema": 1, "services": [` + x + "," + y + "]}", ""},
		{"defaults above", "a.json", `{"defaults": {"health_check": {"type": "tcp"}}, "services": [` + x + "," + y + "]}", "1:62 1:141"},
		{"defaults below", "a.json", `{"services": [` + x + "," + y + `], "defaults": {}}`, "1:15 1:94"},
		{"defaults that are none", "a.json", `{"services": [` + x + "," + y + `], "defaults": null}`, ""},
		{"another key", "a.json", `{"services": [` + x + "," + y + `], "x": 1}`, ""},
		{"another list", "a.json", `{"x": {"services": [` + x + "," + y + `]}, "services": []}`, ""},
		{"twice", "a.json", `{"services": [` + x + "," + y + `], "services": []}`, ""},
		{"in a string", "a.json", `{"$schema": "\"services\": [", "services": [` + x + "," + y + "]}", "1:45 1:124"},
		{"at the end of a string", "a.json", `{"$schema": "\"services", "services": [` + x + "," + y + "]}", "1:40 1:119"},
		{"numbers", "a.json", `{"services": [0, 0]}`, ""},
		{"a comma too many", "a.json", `{"services": [` + x + "," + y + ",]}", ""},
		{"no comma", "a.json", `{"services": [` + x + y + "]}", ""},
		{"a string cut off", "a.json", `0"services":["0`, ""},
		{"objects cut off", "a.json", `{"services": [` + x + `,{"`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			isJSON := tt.path == "a.json"
			services, faults, _, _ := Rules{}.inChunks(context.Background(), tt.path, []byte(tt.text), isJSON, nil)
			var at []string
			for _, s := range services {
				at = append(at, fmt.Sprintf("%d:%d", s.Pos.Line, s.Pos.Col))
			}
			for _, f := range faults {
				at = append(at, f.String())
			}
			if got := strings.Join(at, " "); got != tt.want {
				t.Errorf("services at %q; want %q", got, tt.want)
			}
			compareChunks(t, []byte(tt.text), isJSON)
		})
	}
}

// compareChunks fails unless a file has the same services in chunks as it has as a whole.
func compareChunks(t *testing.T, text []byte, isJSON bool) {
	t.Helper()
	pieces, found, _, ok := Rules{}.inChunks(context.Background(), "a", text, isJSON, nil)
	if !ok {
		return
	}
	whole, faults := Rules{}.parseWhole("a", text, isJSON)
	if len(faults) == 1 && faults[0].Msg == decode.TooDense {
		return // in proportion to a file; pieces may be dense one by one
	}
	if !reflect.DeepEqual(found, faults) || len(pieces)+len(whole) > 0 && !reflect.DeepEqual(pieces, whole) {
		t.Errorf("in pieces: %v, faults %v; as a whole: %v, faults %v\n%q", pieces, found, whole, faults, text)
	}
}

func FuzzPieces(f *testing.F) {
	for _, isJSON := range []bool{false, true} {
		f.Add(listed(isJSON, 1, 2), isJSON)
		f.Add(listed(isJSON, 0, 0, 0), isJSON)
	}
	f.Add([]byte(withDefaults("[defaults.health_check]\ntype = 'tcp'\n")), false)
	f.Add([]byte(withDefaults("[defaults]\nscheduler = 'sh'\nslow_start = '1s'\n")), false)
	f.Add([]byte(`{"services": [{"name": "a"}, {}], "$schema": "\""}`), true)
	f.Fuzz(compareChunks)
}

// BenchmarkOneChanged parses files of 100 and 10,000 services, of which all but one are
// known, without and with a warning in each.
func BenchmarkOneChanged(b *testing.B) {
	for _, bb := range []struct {
		name, path string
		services   int
		warn       bool
	}{
		{"100.toml", "a.toml", 100, false}, {"100.json", "a.json", 100, false},
		{"10000.toml", "a.toml", 10_000, false}, {"10000.json", "a.json", 10_000, false}, {"10000-warnings.toml", "a.toml", 10_000, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			endpoints := slices.Repeat([]int{10}, bb.services)
			var texts [2][]byte
			for i := range texts {
				endpoints[70] += i
				texts[i] = listed(bb.path == "a.json", endpoints...)
				if bb.warn {
					texts[i] = bytes.ReplaceAll(texts[i], []byte("\nports"), []byte("\nsession_affinity_timeout = \"10s\"\nports"))
				}
			}
			_, _, known := Rules{}.ParseNew(b.Context(), bb.path, texts[1], nil)
			b.SetBytes(int64(len(texts[0])))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if _, _, known = (Rules{}).ParseNew(b.Context(), bb.path, texts[n%2], known); len(known) != bb.services {
					b.Fatal(len(known))
				}
			}
		})
	}
}
