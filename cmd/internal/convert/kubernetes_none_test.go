//go:build nokubernetes

package convert_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

const withKubernetes = false

// A build without Kubernetes says so, instead of calling its objects wrong.
func TestNoKubernetes(t *testing.T) {
	for _, name := range []string{"kubernetes", "cilium"} {
		_, err := format(t, name).Read(reader.Input{Name: "in", Data: []byte("kind: List\nitems: []\n")})
		if err == nil || !strings.Contains(err.Error(), "built without Kubernetes") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
