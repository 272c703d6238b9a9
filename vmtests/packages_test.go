//go:build vm

package vmtests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy/vmtests/guest"
)

// tags are those of tests in guests: they are root, and alone.
const tags = "netns,vm"

// kernelPackages pass on any host with namespaces. In a guest they do so on
// another, older kernel.
var kernelPackages = []string{
	"svcproxy/netutil/conntrack",
	"svcproxy/netutil/ipset",
	"svcproxy/netutil/links",
	"svcproxy/netutil/nft",
	"svcproxy/proxier/iptables",
	"svcproxy/proxier/nftables",
}

// packagePatience is five times what the slowest package takes on two idle cores.
const packagePatience = 10 * time.Minute

// Each package's tests pass in a guest of their own.
func TestPackages(t *testing.T) {
	packages := append(packagesWithTag(t), kernelPackages...)
	slices.Sort(packages)
	for _, pkg := range slices.Compact(packages) {
		t.Run(strings.TrimPrefix(pkg, "svcproxy/"), func(t *testing.T) {
			t.Parallel()
			runTests(t, pkg, guest.Config{}, guest.Command{}, packagePatience)
		})
	}
}

// packagesWithTag returns the packages that have tests with the tag vm, but for this one's.
func packagesWithTag(t *testing.T) (packages []string) {
	t.Helper()
	without := testFiles(t, "netns")
	for pkg, files := range testFiles(t, tags) {
		if files != without[pkg] && !strings.HasPrefix(pkg, "svcproxy/vmtests") {
			packages = append(packages, pkg)
		}
	}
	return packages
}

// testFiles returns the test files of all packages.
func testFiles(t *testing.T, tags string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-tags="+tags, "-f", "{{.ImportPath}} {{.TestGoFiles}} {{.XTestGoFiles}}", "svcproxy/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		pkg, names, _ := strings.Cut(line, " ")
		files[pkg] = names
	}
	if len(files) == 0 {
		t.Fatal("go list lists no packages")
	}
	return files
}

// runTests builds the tests of a package and runs them in a guest, with the
// arguments of cmd and beside the package's testdata.
func runTests(t *testing.T, pkg string, cfg guest.Config, cmd guest.Command, patience time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	binary, err := guest.BuildTest(ctx, pkg, tags)
	if err != nil {
		t.Fatal(err)
	}
	name := path.Join(guest.Home, path.Base(pkg)+".test")
	cfg.Name = path.Base(pkg)
	cfg.Files = append(cfg.Files, guest.File{Path: name, Mode: 0o755, Data: binary})
	cfg.Files = append(cfg.Files, testdata(t, pkg)...)
	cmd.Args = append([]string{name, "-test.v"}, cmd.Args...)
	cmd.Dir = guest.Home
	var out bytes.Buffer
	code, err := guest.Run(ctx, cfg, cmd, &out)
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v\n%s", code, err, out.String())
		return
	}
	t.Logf("%d tests passed", strings.Count(out.String(), "--- PASS"))
}

// testdata returns the package's testdata, where it has some.
func testdata(t *testing.T, pkg string) []guest.File {
	t.Helper()
	dir := path.Join("..", strings.TrimPrefix(pkg, "svcproxy/"), "testdata")
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	files, err := guest.AppendTree(nil, dir, path.Join(guest.Home, "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
