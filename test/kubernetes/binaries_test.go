//go:build netns

package kubernetes

import (
	"testing"

	"svcproxy.dev/svcproxy/test/kubernetes/programs"
)

// binary returns the path of a program, which it may have to build.
func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := programs.Path(".", name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPrograms builds what the tests need, ahead of them.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"etcd", "kube-apiserver", "kube-proxy"} {
		t.Log(binary(t, name))
	}
}
