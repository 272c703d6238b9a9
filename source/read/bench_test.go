package read_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
)

// manyServices is the text of services with ten endpoints each, half of them tables.
func manyServices(services int) string {
	var b strings.Builder
	for i := range services {
		fmt.Fprintf(&b, "[[services]]\nname = \"svc-%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ name = \"http\", port = 80, target_port = 8080 }]\nendpoints = [\n", i, i/250, i%250+1)
		for j := range 5 {
			fmt.Fprintf(&b, "  \"10.%d.%d.%d\",\n", 1+j, i/250, i%250+1)
			fmt.Fprintf(&b, "  { address = \"10.%d.%d.%d\", port = 8081, node = \"node-%d\", weight = 2 },\n", 101+j, i/250, i%250+1, j)
		}
		b.WriteString("]\n\n")
	}
	return b.String()
}

// BenchmarkDecode is what BenchmarkParse is measured against: the library alone,
// into structs, with nothing checked.
func BenchmarkDecode(b *testing.B) {
	text := manyServices(10_000)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var v struct {
			Services []struct {
				Name  string
				VIPs  []string
				Ports []struct {
					Name             string
					Port, TargetPort int
				}
				Endpoints []any
			}
		}
		if _, err := toml.Decode(text, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	text := []byte(manyServices(10_000))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		services, faults := read.Parse("many.toml", text)
		if len(services) != 10_000 || faults != nil {
			b.Fatal(len(services), faults)
		}
	}
}

// manyServicesJSON is the same in JSON, as a program would write it.
func manyServicesJSON(b *testing.B, services int) string {
	var tree map[string]any
	if _, err := toml.Decode(manyServices(services), &tree); err != nil {
		b.Fatal(err)
	}
	text, err := json.MarshalIndent(tree, "", "  ")
	fatal.If(b, err)
	return string(text)
}

// BenchmarkParseFile parses a file of 100 services, about 80 KB.
func BenchmarkParseFile(b *testing.B) {
	for path, text := range map[string]string{"a.toml": manyServices(100), "a.json": manyServicesJSON(b, 100)} {
		b.Run(path, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				services, faults := read.Parse(path, []byte(text))
				if len(services) != 100 || faults != nil {
					b.Fatal(len(services), faults)
				}
			}
		})
	}
}
