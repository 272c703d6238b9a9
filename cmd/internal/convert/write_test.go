package convert_test

import (
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source/read"
)

// What a reader sets of a service is in the file.
func TestKeysAreWritten(t *testing.T) {
	for _, key := range []string{
		`source_ranges = ["198.51.100.0/24", "192.0.2.7/32"]`, `masquerade = "never"`, `masquerade = "all"`, `slow_start = "30s"`,
		`session_affinity = "client_ip"`, `enabled = false`,
	} {
		text := "[[services]]\nname = \"a\"\nvips = [\"192.0.2.10\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\", \"10.0.0.2\"]\n" + key + "\n"
		want, faults := read.Parse("a.toml", []byte(text))
		if len(faults) > 0 {
			t.Fatalf("%s: %v", key, faults)
		}
		d, err := convert.Judge{}.Document(&reader.Result{Services: []*reader.Service{{Service: want[0]}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := read.Parse("a.toml", d.TOML); len(got) != 1 || !got[0].Equal(want[0]) {
			t.Errorf("%s is lost in\n%s", key, d.TOML)
		}
	}
}
