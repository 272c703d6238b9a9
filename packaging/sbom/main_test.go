package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// bom returns the bill of materials of this test, as a reader of the format has it.
func bom(t *testing.T, epoch string) (text string, b cdx.BOM) {
	t.Helper()
	program, err := os.Executable()
	fatal.If(t, err)
	var out bytes.Buffer
	fatal.If(t, write(&out, program, "v1.2.3", epoch))
	fatal.If(t, cdx.NewBOMDecoder(bytes.NewReader(out.Bytes()), cdx.BOMFileFormatJSON).Decode(&b))
	return out.String(), b
}

// Every module that this program was built from is in its bill, once, with its version.
func TestEveryModuleIsInTheBill(t *testing.T) {
	_, b := bom(t, "")
	var got []string
	for _, c := range *b.Components {
		got = append(got, c.PackageURL)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) == 0 {
		t.Fatal("this test does not know what it was built from")
	}
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if refs := *(*b.Dependencies)[0].Dependencies; !slices.Equal(refs, want) {
		t.Errorf("the program depends on %q", refs)
	}
}

// A bill says the same each time, and when its program was made if that is known.
func TestBillIsReproducible(t *testing.T) {
	first, b := bom(t, "86400")
	if again, _ := bom(t, "86400"); again != first {
		t.Errorf("another time\n%s\nbefore\n%s", again, first)
	}
	if b.SerialNumber != "" || b.Metadata.Timestamp != "1970-01-02T00:00:00Z" || b.SpecVersion != cdx.SpecVersion1_6 {
		t.Errorf("serial number %q, time %q, version %v", b.SerialNumber, b.Metadata.Timestamp, b.SpecVersion)
	}
	if without, _ := bom(t, ""); strings.Contains(without, "timestamp") {
		t.Errorf("a time out of nowhere in\n%s", without)
	}
	if main := b.Metadata.Component.PackageURL; main != "pkg:golang/svcproxy.dev/svcproxy@v1.2.3" {
		t.Errorf("it is of %s", main)
	}
	if hash := (*b.Metadata.Component.Hashes)[0]; !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(hash.Value) {
		t.Errorf("the program's hash is %q", hash.Value)
	}
	if !json.Valid([]byte(first)) {
		t.Error("not JSON")
	}
}

func TestFaultsOfBills(t *testing.T) {
	if err := write(&bytes.Buffer{}, "main.go", "v1", ""); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("of a file that is no program: %v", err)
	}
	program, err := os.Executable()
	fatal.If(t, err)
	if err := write(&bytes.Buffer{}, program, "v1", "today"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("with a time that is none: %v", err)
	}
}
