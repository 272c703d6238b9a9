package backendtest

import (
	"os"
	"path/filepath"
	"testing"
)

// WithoutExtension makes iptables do without an extension, in this process and its children.
func WithoutExtension(t testing.TB, extension string) {
	t.Helper()
	dir := t.TempDir()
	libs, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(libs) == 0 {
		t.Fatalf("the extensions of iptables are not where Debian has them: %v", err)
	}
	for _, lib := range libs {
		if filepath.Base(lib) == "lib"+extension+".so" {
			continue
		}
		if err := os.Symlink(lib, filepath.Join(dir, filepath.Base(lib))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XTABLES_LIBDIR", dir)
}
