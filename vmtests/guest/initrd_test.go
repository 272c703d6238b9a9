package guest

import (
	"errors"
	"io"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
)

// Directories come before what is in them, each once: the kernel makes none by itself.
func TestArchive(t *testing.T) {
	a, err := newArchive()
	if err != nil {
		t.Fatal(err)
	}
	defer a.file.Close()
	a.add(File{Path: "/init", Mode: 0o755, Data: []byte("program")})
	a.add(File{Path: "/files/etc/one", Mode: 0o600, Data: []byte("1")})
	a.add(File{Path: "/files/etc/two", Mode: 0o644})
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Name string
		Mode cpio.FileMode
		Data string
	}
	want := []entry{
		{"init", cpio.TypeReg | 0o755, "program"},
		{"files", cpio.TypeDir | 0o755, ""},
		{"files/etc", cpio.TypeDir | 0o755, ""},
		{"files/etc/one", cpio.TypeReg | 0o600, "1"},
		{"files/etc/two", cpio.TypeReg | 0o644, ""},
	}
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	var got []entry
	r := cpio.NewReader(a.file)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{h.Name, h.Mode, string(data)})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var console tail
	for range tailSize {
		console.Write([]byte("ab"))
	}
	console.Write([]byte("end\n"))
	if got := console.String(); len(got) != tailSize-1 || got[len(got)-5:] != "abend" {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-5:])
	}
}
