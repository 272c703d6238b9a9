// Package programs builds the programs that tests of this module run: those of
// Kubernetes, which it keeps, and svcproxy.
package programs

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// packages are the programs of module binaries.
var packages = map[string]string{
	"etcd":           "go.etcd.io/etcd/server/v3",
	"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-proxy":     "k8s.io/kubernetes/cmd/kube-proxy",
}

// Path returns the path of a program: etcd, kube-apiserver or kube-proxy. It builds it when
// the cache has none of this version: some 8 minutes for kube-apiserver on two cores.
// module is the path of the folder of this module.
func Path(module, name string) (string, error) {
	binaries := filepath.Join(module, "binaries")
	dir, err := cacheDir(binaries)
	if err != nil {
		return "", fmt.Errorf("finding the cache of %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("nice", "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", fresh, packages[name])
	cmd.Dir, cmd.Env = binaries, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	if err := os.Rename(fresh, path); err != nil { // whole, or not at all
		return "", fmt.Errorf("keeping %s: %w", name, err)
	}
	return path, nil
}

// cacheDir is where built programs stay, by the versions that they are built of.
func cacheDir(binaries string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(binaries, "go.mod"))
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

// Svcproxy builds the program of the module around this one into dir.
func Svcproxy(module, dir string) (string, error) {
	path := filepath.Join(dir, "svcproxy")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "./cmd/svcproxy")
	cmd.Dir, cmd.Env = filepath.Join(module, "..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building svcproxy: %w\n%s", err, out)
	}
	return path, nil
}
