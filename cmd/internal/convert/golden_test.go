package convert_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

var update = flag.Bool("update", false, "rewrite what the golden files want")

// Each file testdata/FORMAT/*.txtar is one input, "in", with files that it includes, the
// service file that is made of it, "want.toml", and what is said, "want.notes".
func TestGolden(t *testing.T) {
	for _, f := range convert.Formats {
		if !withKubernetes && (f.Name == "kubernetes" || f.Name == "cilium") {
			continue
		}
		files, err := filepath.Glob("testdata/" + f.Name + "/*.txtar")
		if err != nil || len(files) == 0 {
			t.Errorf("no goldens for %s: %v", f.Name, err)
		}
		for _, path := range files {
			t.Run(f.Name+"/"+strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { golden(t, f, path) })
		}
	}
}

func golden(t *testing.T, f convert.Format, path string) {
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	toml, notes := converted(t, f, ar)
	if *update {
		put(ar, "want.toml", toml)
		put(ar, "want.notes", notes)
		if err := os.WriteFile(path, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(section(ar, "want.toml"), toml); diff != "" {
		t.Errorf("want.toml (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(section(ar, "want.notes"), notes); diff != "" {
		t.Errorf("want.notes (-want +got):\n%s", diff)
	}
}

// converted returns the service file of an archive and the notes, with names as in the archive.
func converted(t *testing.T, f convert.Format, ar *txtar.Archive) (toml, notes string) {
	dir := t.TempDir()
	for _, file := range ar.Files {
		path := filepath.Join(dir, file.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in := reader.Input{Name: filepath.Join(dir, "in"), Data: []byte(section(ar, "in")), ID: "lb1"}
	d, err := document(f, in)
	if err != nil {
		return "", strings.ReplaceAll(err.Error(), dir+"/", "") + "\n"
	}
	var b strings.Builder
	for _, n := range d.Notes {
		b.WriteString(n.String() + "\n")
	}
	return strings.ReplaceAll(string(d.TOML), dir+"/", ""), strings.ReplaceAll(b.String(), dir+"/", "")
}

func document(f convert.Format, in reader.Input) (*convert.Document, error) {
	result, err := f.Read(in)
	if err != nil {
		return nil, err
	}
	rules := read.Rules{Check: func(s *source.Service) []source.Problem { return configs.Refuse(s, "nftables", "ipvs", "iptables") }}
	return convert.Judge{Mode: configs.Auto, Rules: rules}.Document(result, "Of "+in.Name+".")
}

func section(ar *txtar.Archive, name string) string {
	for _, f := range ar.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func put(ar *txtar.Archive, name, text string) {
	for i := range ar.Files {
		if ar.Files[i].Name == name {
			ar.Files[i].Data = []byte(text)
			return
		}
	}
	ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(text)})
}

func format(t testing.TB, name string) convert.Format {
	f, err := convert.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
