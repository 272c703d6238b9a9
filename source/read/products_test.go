package read

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// quoted returns n addresses as elements of a list.
func quoted(first string, n int) string {
	var list []string
	for a := netip.MustParseAddr(first); len(list) < n; a = a.Next() {
		list = append(list, fmt.Sprintf("%q", a))
	}
	return strings.Join(list, ", ")
}

// A multiplied file is one that is at a limit, by one of the ways to multiply.
type multiplied struct {
	name, file string
	text       func(addrs int) string // of a file with so many addresses
	limits     Limits
	fault      string // of one address more, as it begins
}

// of is a service in TOML.
func of(name string, addrs int, more string) string {
	return fmt.Sprintf("[[services]]\nname = %q\nvips = [%s]\n%s\n", name, quoted("10.96.0.1", addrs), more)
}

func multipliedFiles() []multiplied {
	const frontends, endpoints, ranges = "frontends (addresses", "endpoints of frontends (addresses", "source ranges of frontends (addresses"
	const portRange = `ports = [{ port = "1-10", protocol = ["tcp", "udp"] }]`
	return []multiplied{
		{"a range and protocols", "a.toml", func(n int) string { return of("a", n, portRange) }, Limits{Frontends: 100}, "4:9: the services of this file have 120 " + frontends},
		{"in JSON", "a.json", func(n int) string {
			return `{"services": [{"name": "a", "vips": [` + quoted("10.96.0.1", n) + `], "ports": [{"port": "1-10", "protocol": ["tcp", "udp"]}]}]}`
		}, Limits{Frontends: 100}, "1:"},
		{"of several services", "a.toml", func(n int) string {
			return of("a", 2, portRange) + of("b", n-2, `ports = [{ port = "101-120" }]`)
		}, Limits{Frontends: 100}, "8:9: the services of this file have 120 " + frontends},
		{"read as a whole", "a.toml", func(n int) string {
			return of("a", 2, portRange) + "[[ services ]]" + strings.TrimPrefix(of("b", n-2, `ports = [{ port = "101-120" }]`), "[[services]]")
		}, Limits{Frontends: 100}, "8:9: the services of this file have 120 " + frontends},
		{"endpoints", "a.toml", func(n int) string { return of("a", n, portRange+"\nendpoints = ["+quoted("192.0.2.1", 3)+"]") },
			Limits{FrontendEndpoints: 300}, "5:13: the services of this file have 360 " + endpoints},
		{"weights", "a.toml", func(n int) string {
			return of("a", n, `ports = [{ port = 80 }]
endpoints = [{ address = "192.0.2.1", weight = 1 }, { address = "192.0.2.2", weight = 9 }]`)
		}, Limits{FrontendEndpoints: 50}, "5:13: the services of this file have 60 " + endpoints},
		{"maglev by default", "a.toml", func(n int) string {
			return "[defaults]\nscheduler = \"maglev\"\n" + of("a", n, `ports = [{ port = 80 }]`+"\nendpoints = ["+quoted("192.0.2.1", 3)+"]")
		}, Limits{FrontendEndpoints: 5 * 2039}, "7:13: the services of this file have 12234 " + endpoints},
		{"source ranges", "a.toml", func(n int) string {
			return of("a", n, portRange+"\nsource_ranges = [\"10.0.0.0/8\", \"192.168.0.0/16\"]")
		},
			Limits{FrontendSourceRanges: 200}, "5:17: the services of this file have 240 " + ranges},
		{"source ranges by default", "a.toml", func(n int) string {
			return "[defaults]\nsource_ranges = [\"10.0.0.0/8\", \"192.168.0.0/16\"]\n" + of("a", n, portRange)
		}, Limits{FrontendSourceRanges: 200}, "3:1: the services of this file have 240 " + ranges},
		{"without addresses", "a.toml", func(n int) string { return of("a", 0, fmt.Sprintf(`ports = [{ port = "1-%d" }]`, n)) }, Limits{Frontends: 5},
			"4:9: the services of this file have 6 " + frontends},
	}
}

// Each product is good at its limit, and its key is named above it.
func TestProductsOfFile(t *testing.T) {
	for _, tt := range multipliedFiles() {
		t.Run(tt.name, func(t *testing.T) {
			rules := Rules{Limits: tt.limits}
			got, faults := rules.Parse(tt.file, []byte(tt.text(5)))
			if len(got) == 0 || source.AnyError(faults) {
				t.Errorf("at the limit: %v", faults)
			}
			got, faults = rules.Parse(tt.file, []byte(tt.text(6)))
			faults = slices.DeleteFunc(faults, func(f source.Fault) bool { return f.Warning })
			if len(got) > 0 || len(faults) != 1 || !strings.HasPrefix(faults[0].String(), tt.file+":"+tt.fault) || !strings.HasSuffix(faults[0].Hint, "in [limits] of svcproxy.toml") {
				t.Errorf("above the limit: %d services, %v, want %s", len(got), faults, tt.fault)
			}
		})
	}
}

// growth returns how many bytes are allocated to read a text.
func growth(rules Rules, path, text string) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = rules.Parse(path, []byte(text))
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A text that stands for a thousand times as much takes no more memory than one that does not: nothing is
// made before it is counted.
func TestRefusedProductsTakeNoMemory(t *testing.T) {
	plain := growth(Rules{}, "a.toml", of("a", 30_000, "ports = [{ port = 80 }]\nendpoints = []"))
	for name, more := range map[string]string{
		"frontends":     "ports = [{ port = \"1-1000\" }]\nendpoints = []",
		"endpoints":     "ports = [{ port = 80 }]\nendpoints = [" + quoted("192.0.2.1", 100) + "]",
		"source ranges": "ports = [{ port = 80 }]\nsource_ranges = [" + strings.ReplaceAll(quoted("192.0.2.1", 100), `",`, `/32",`) + "]",
	} {
		if got := growth(Rules{}, "a.toml", of("a", 30_000, more)); got > plain+plain/2 {
			t.Errorf("%s: %d bytes are allocated, %d of a file with as many addresses", name, got, plain)
		}
	}
	var b strings.Builder // what the first services are too many of is not made for the others either
	for i := range 3000 {
		b.WriteString(of(fmt.Sprint("s", i), 1, `ports = [{ port = "1-1000" }]`))
	}
	many := b.String()
	single := growth(Rules{}, "a.toml", strings.ReplaceAll(many, `"1-1000"`, `"1-1"`))
	if got := growth(Rules{Limits: Limits{Frontends: 2000}}, "a.toml", many); got > single {
		t.Errorf("%d bytes are allocated for 3000 services of 1000 ports, %d of one port", got, single)
	}
}

// FuzzMemory finds texts of at most 64 KiB that take more memory than limits should let through.
func FuzzMemory(f *testing.F) {
	for _, tt := range multipliedFiles() {
		f.Add([]byte(tt.text(6)), strings.HasSuffix(tt.file, ".json"))
	}
	f.Add([]byte(of("a", 3000, `ports = [{ port = "1-1000" }]`)), false)
	rules := Rules{Limits: Limits{Frontends: 1000, FrontendEndpoints: 10_000, FrontendSourceRanges: 1000}}
	f.Fuzz(func(t *testing.T, text []byte, isJSON bool) {
		const most = 64 << 10
		path := "a.toml"
		if isJSON {
			path = "a.json"
		}
		if text = text[:min(len(text), most)]; growth(rules, path, string(text)) > 1000*most {
			t.Errorf("%q takes more than %d bytes", source.Excerpt(string(text)), 1000*most)
		}
	})
}

// A list of more endpoints than a service may have is refused before it is read: in two thirds of the memory that one within the limit takes.
func TestLongListTakesNoMemory(t *testing.T) {
	const n = 100_000
	text := "[" + quoted("10.0.0.1", n) + "]"
	good := growth(Rules{Limits: Limits{Endpoints: n}}, "a.endpoints.json", text)
	if got := growth(Rules{}, "a.endpoints.json", text); got > good*2/3 {
		t.Errorf("%d bytes are allocated for a list that is refused, %d for one that is not", got, good)
	}
	_, faults := Rules{Limits: Limits{Endpoints: n - 1}}.Parse("a.endpoints.json", []byte(text))
	if want := "a.endpoints.json:1:1: endpoints has 100000 elements, more than 99999; raise endpoints in [limits] of svcproxy.toml"; len(faults) != 1 || faults[0].String() != want {
		t.Errorf("got %v, want %s", faults, want)
	}
	if _, faults = (Rules{Limits: Limits{Endpoints: n}}).Parse("a.endpoints.json", []byte(text)); len(faults) > 0 {
		t.Errorf("at the limit: %v", faults)
	}
}
