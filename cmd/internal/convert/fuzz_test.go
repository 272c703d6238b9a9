package convert_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

func FuzzKeepalived(f *testing.F) { fuzz(f, "keepalived") }

func FuzzHAProxy(f *testing.F) { fuzz(f, "haproxy") }

func FuzzIPTables(f *testing.F) { fuzz(f, "iptables") }

func FuzzIPVSAdm(f *testing.F) { fuzz(f, "ipvsadm") }

// fuzz holds that whatever is read, the service file has no fault, and no note more than one line
// or anything that steers a terminal.
func fuzz(f *testing.F, name string) {
	files, err := filepath.Glob("testdata/" + name + "/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range files {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(section(ar, "in"))
	}
	format := format(f, name)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := document(format, reader.Input{Name: "in", Data: []byte(text), ID: "lb1"})
		if err != nil {
			if line := err.Error(); source.Printable(line) != line {
				t.Errorf("error %q", line)
			}
			return
		}
		for _, n := range d.Notes {
			if line := n.String(); source.Printable(line) != line {
				t.Errorf("note %q", line)
			}
		}
		services, faults := read.Parse("services.toml", d.TOML)
		for _, f := range faults {
			if !f.Warning && d.Services > 0 { // else all is comments, which no file may be
				t.Errorf("%s of\n%s", f, d.TOML)
			}
		}
		if len(services) != d.Services || strings.Contains(string(d.TOML), "\r") {
			t.Errorf("%d services; want %d in\n%s", len(services), d.Services, d.TOML)
		}
	})
}
