//go:build vm

package vmtests

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// tags are those of tests in guests: they are root, and alone.
const tags = "netns,vm"

// kernelPackages speak to the kernel and pass on any host with namespaces. In a
// guest they do so on another, older kernel.
var kernelPackages = []string{
	"svcproxy.dev/svcproxy/netutil/conntrack",
	"svcproxy.dev/svcproxy/netutil/ipset",
	"svcproxy.dev/svcproxy/netutil/nft",
}

// packagePatience is more than five times what the slowest package takes on two idle cores.
const packagePatience = 45 * time.Minute

// Tests pass in a guest of their own for each package. Guests of the lab run beside them:
// one alone keeps hardly more than one processor busy.
func TestPackages(t *testing.T) {
	t.Parallel()
	run := vmTests(t)
	for _, pkg := range kernelPackages {
		run[pkg] = "." // all
	}
	for _, pkg := range slices.Sorted(maps.Keys(run)) {
		t.Run(strings.TrimPrefix(pkg, "svcproxy.dev/svcproxy/"), func(t *testing.T) {
			t.Parallel()
			runTests(t, pkg, guest.Config{}, guest.Command{Args: []string{"-test.run=" + run[pkg]}}, packagePatience)
		})
	}
}

// vmTests returns patterns of the tests with the tag vm, by package, except for those of this one, of svcproxy itself, and
// of its peers.
func vmTests(t *testing.T) map[string]string {
	t.Helper()
	patterns := make(map[string]string)
	without := testFiles(t, "netns")
	for pkg, files := range testFiles(t, tags) {
		if pkg == labPackage || pkg == hostsPackage || pkg == historyPackage || strings.HasPrefix(pkg, "svcproxy.dev/svcproxy/vmtests") {
			continue
		}
		files = slices.DeleteFunc(files, func(name string) bool { return slices.Contains(without[pkg], name) })
		if names := testNames(t, files); len(names) > 0 { // else the tag adds to what other tests do
			patterns[pkg] = "^(" + strings.Join(names, "|") + ")$"
		}
	}
	return patterns
}

// testFiles returns the paths of the test files of all packages.
func testFiles(t *testing.T, tags string) map[string][]string {
	t.Helper()
	const format = `{{$d := .Dir}}{{.ImportPath}}{{range .TestGoFiles}} {{$d}}/{{.}}{{end}}{{range .XTestGoFiles}} {{$d}}/{{.}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-tags="+tags, "-f", format, "svcproxy.dev/svcproxy/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		files[words[0]] = words[1:]
	}
	return files
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames returns the tests in files.
func testNames(t *testing.T, files []string) (names []string) {
	t.Helper()
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// Packages whose tests are of svcproxy itself, or of peers.
const (
	labPackage     = "svcproxy.dev/svcproxy/test/lab"
	hostsPackage   = "svcproxy.dev/svcproxy/test/hosts"
	historyPackage = "svcproxy.dev/svcproxy/test/history"
)

// atRest are the groups of cases in which nothing goes wrong and little changes.
const atRest = "^(addresses|masquerade.*|policy|local sources.*|.*node ports|service ranges|one family|source ranges|firewall)$"

// atLeisure are cases of ipvs mode that take minutes where the processor is emulated and whose way through the
// program others take too, here or in iptables mode: make soak-vm runs them.
const atLeisure = "^TestCases$/^ipvs/^same source port$/^(weight 0|disabled|not ready|drained for too long|unanswered|sent before the service|rolling replacement)$|" +
	"^TestCases$/^ipvs/^mode change to iptables$|" +
	"^TestCases$/^ipvs/^firewall$/^(translations of others|another bit|rules that iptables cannot print)$"

// labRuns are parts of the packet lab: ipvs mode in two guests, the one that takes
// longest first, and a little of nftables mode on another kernel than the host's; and
// several hosts in ipvs mode.
var labRuns = []struct{ name, pkg, run, skip string }{
	{"ipvs in motion", labPackage, "^(TestCases|TestLegal)$/^ipvs", "^TestCases$/^ipvs/" + atRest + "|" + atLeisure},
	{"ipvs at rest", labPackage, "^TestCases$/^ipvs/" + atRest, atLeisure},
	{"nftables", labPackage, "^TestCases$/^nftables$/^(one family|monitor)$", "^TestCases$/^nftables$/^monitor$/^again"}, // emulation is too slow to be fought with
	{"several hosts", hostsPackage, "^TestECMP$/^ipvs$/^(maglev|without a hash)$", ""},
}

// labPatience is three times what a run takes on two idle cores, with their changes of mode.
const labPatience = 50 * time.Minute

// Packets meet what they should on another kernel, too, and in the mode that needs one.
func TestLab(t *testing.T) {
	t.Parallel()
	binary, err := guest.Build(t.Context(), "svcproxy.dev/svcproxy/cmd/svcproxy")
	if err != nil {
		t.Fatal(err)
	}
	path := path.Join(guest.Home, "svcproxy")
	cfg := guest.Config{Memory: 2048, Files: []guest.File{{Path: path, Mode: 0o755, Data: binary}}}
	for _, run := range labRuns {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			cmd := guest.Command{Args: []string{"-test.run=" + run.run, "-test.skip=" + run.skip}, Env: []string{"SVCPROXY_LAB_BINARY=" + path, fmt.Sprint("SVCPROXY_LAB_SLOW=", int(emulation()))}}
			runTests(t, run.pkg, cfg, cmd, labPatience)
		})
	}
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
	cfg.Name, cfg.Again = path.Base(pkg), tried.again(t.Name())
	cfg.Files = append(slices.Clip(cfg.Files), guest.File{Path: name, Mode: 0o755, Data: binary})
	cfg.Files = append(cfg.Files, testdata(t, pkg)...)
	cmd.Args = append([]string{name, "-test.v"}, cmd.Args...)
	cmd.Dir = guest.Home
	var out bytes.Buffer
	code, err := guest.Run(ctx, cfg, cmd, &out)
	passed := strings.Count(out.String(), "--- PASS")
	names, said := failures(out.String())
	again := patterns(names)
	switch {
	case err == nil && code != 0 && passed > 0 && 0 < len(again) && len(again) <= maxAgain:
		fmt.Fprintf(os.Stderr, "%s: of %d tests, once more in a guest of their own: %q\n%s", t.Name(), passed+len(names), again, said)
		tried.add(t.Name(), again)
		for _, pattern := range again {
			t.Run("once more", func(t *testing.T) { runAgain(ctx, t, cfg, cmd, pattern) })
		}
	case err != nil || code != 0 || passed == 0:
		t.Fatalf("%d tests passed, exit code %d, %v\n%s", passed, code, err, said)
	}
	t.Logf("%d tests passed; the longest:\n%s", passed, slowest(out.String()))
}

// maxAgain is how many tests, or groups of cases, may fail for no other reason than
// that guests under emulation stand still for seconds, or that a case has one chance
// in some hundred. More is a fault.
const maxAgain = 3

// runAgain runs tests that failed; now they must pass.
func runAgain(ctx context.Context, t *testing.T, cfg guest.Config, cmd guest.Command, pattern string) {
	cmd.Args = append(slices.Clip(cmd.Args), "-test.run="+pattern) // the last one holds
	var out bytes.Buffer
	code, err := guest.Run(ctx, cfg, cmd, &out)
	if err != nil || code != 0 || !strings.Contains(out.String(), "--- PASS") {
		_, said := failures(out.String())
		t.Fatalf("failed again: exit code %d, %v\n%s", code, err, said)
	}
}

// testdata returns the package's testdata, where it has some.
func testdata(t *testing.T, pkg string) []guest.File {
	t.Helper()
	dir := path.Join("..", strings.TrimPrefix(pkg, "svcproxy.dev/svcproxy/"), "testdata")
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	files, err := guest.AppendTree(nil, dir, path.Join(guest.Home, "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
