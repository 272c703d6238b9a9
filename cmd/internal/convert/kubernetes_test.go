//go:build !nokubernetes

package convert_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
)

const withKubernetes = true

func FuzzKubernetes(f *testing.F) { fuzz(f, "kubernetes") }

func FuzzCilium(f *testing.F) { fuzz(f, "cilium") }

// A short text that stands for a long one is refused, not written out.
func TestAliases(t *testing.T) {
	text := "a: &a [" + strings.Repeat("x, ", 100) + "]\n"
	for _, c := range "bcdefgh" {
		text += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 20) + "]\n"
	}
	_, err := format(t, "kubernetes").Read(convert.Input{Name: "in", Data: []byte(text)})
	if want := "in:1: it is no YAML: document contains excessive aliasing"; err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}
