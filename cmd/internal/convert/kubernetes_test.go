//go:build !nokubernetes

package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
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
	_, err := format(t, "kubernetes").Read(reader.Input{Name: "in", Data: []byte(text)})
	if want := "in:1: it is no YAML: document contains excessive aliasing"; err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

// A service of many ports may not be one for each with all endpoints, without end.
func TestKubernetesGrowth(t *testing.T) {
	tooMuch(t, "kubernetes", uneven(10), uneven(1000))
}

// uneven returns a service of n ports and of two endpoints for each, of which the first has one port only.
func uneven(n int) string {
	const head = "---\nkind: EndpointSlice\nmetadata: {name: a-%d, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\n"
	var endpoints strings.Builder
	for i := range 2 * n {
		fmt.Fprintf(&endpoints, "- addresses: [10.1.%d.%d]\n", i/250, i%250+1)
	}
	ports := lines(n, "  - {name: p%[1]d, port: %[1]d}")
	return "kind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: 10.96.0.1\n  ports:\n" + ports +
		fmt.Sprintf(head, 1) + "ports: [{name: p1, port: 1}]\nendpoints: [{addresses: [10.0.0.1]}]\n" +
		fmt.Sprintf(head, 2) + "ports:\n" + ports + "endpoints:\n" + endpoints.String()
}
