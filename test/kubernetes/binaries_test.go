//go:build netns

package kubernetes

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// packages are the programs of module binaries.
var packages = map[string]string{
	"etcd":           "go.etcd.io/etcd/server/v3",
	"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-proxy":     "k8s.io/kubernetes/cmd/kube-proxy",
}

// binary returns the path of a program, which it builds when the cache has none
// of this version: some 8 minutes for kube-apiserver on two cores.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	t.Logf("building %s", name)
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("nice", "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", fresh, packages[name])
	cmd.Dir, cmd.Env = "binaries", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, out)
	}
	if err := os.Rename(fresh, path); err != nil { // whole, or not at all
		t.Fatal(err)
	}
	return path
}

// cacheDir is where built programs stay, by the versions that they are built of.
func cacheDir() (string, error) {
	mod, err := os.ReadFile("binaries/go.mod")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "svcproxy", fmt.Sprintf("kubernetes-%.12x-%s", sha256.Sum256(mod), runtime.Version()))
	return dir, os.MkdirAll(dir, 0o755)
}

// buildSvcproxy builds the program of the module around this one.
func buildSvcproxy(dir string) (string, error) {
	path := filepath.Join(dir, "svcproxy")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/svcproxy")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building svcproxy: %w\n%s", err, out)
	}
	return path, nil
}

// TestPrograms builds what the tests need, ahead of them.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"etcd", "kube-apiserver", "kube-proxy"} {
		t.Log(binary(t, name))
	}
}
