//go:build netns

package proxier_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/nftables/nfttest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The words of the scenarios are made of the expressions that the kernel takes: nft lists
// the same, rule by rule and element by element.
func TestGoldenIsListed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			fatal.If(t, err)
			services, node := parse(t, ar)
			netnstest.Enter(t)
			for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
				st := policy.NewState(fam, node, services)
				want, got := words(nfttest.Text(st)), listed(t, st)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-words +listed by nft):\n%s", fam, diff)
				}
			}
		})
	}
}

// words returns the lines of a scenario: rules by chain, in order, and elements by set.
func words(lines []string) map[string][]string {
	all := map[string][]string{}
	for _, line := range lines {
		f := strings.SplitN(line, " ", 6) // add, what, family, table, chain or set, the rest
		object, text := f[1]+" "+f[4], f[5]
		if f[1] == "element" {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "{ "), " }")
		}
		all[object] = append(all[object], text)
	}
	return sorted(all)
}

// sorted sorts elements, which have no order.
func sorted(all map[string][]string) map[string][]string {
	for object, list := range all {
		if strings.HasPrefix(object, "element ") {
			slices.Sort(list)
		}
	}
	return all
}

// listed makes the kernel hold st and returns what nft lists, as words does.
func listed(t *testing.T, st *policy.State) map[string][]string {
	t.Helper()
	b, err := nftables.New(context.Background(), st.Family, nftables.Options{})
	fatal.If(t, err)
	defer b.Close()
	fatal.If(t, b.Sync(context.Background(), st, nil))
	family := map[policy.Family]string{policy.IPv4: "ip", policy.IPv6: "ip6"}[st.Family]
	out, err := exec.Command("nft", "list", "table", family, "svcproxy").Output()
	fatal.If(t, err)
	all := map[string][]string{}
	for _, object := range objects.FindAllStringSubmatch(string(out), -1) {
		kind, name, body := object[1], object[2], object[3]
		if kind == "chain" {
			rulesOf(body, func(rule string) { all["rule "+name] = append(all["rule "+name], rule) })
		} else if e := elements.FindStringSubmatch(body); e != nil {
			all["element "+name] = regexp.MustCompile(`,\s+`).Split(e[1], -1)
		}
	}
	return sorted(all)
}

var (
	objects  = regexp.MustCompile(`(?ms)^\t(chain|set|map) (\S+) \{\n(.*?)^\t\}`)
	elements = regexp.MustCompile(`(?s)elements = \{ (.*) \}`)
)

// rulesOf calls do with each rule of a chain that nft lists.
func rulesOf(body string, do func(string)) {
	for line := range strings.SplitSeq(body, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "comment ") && !strings.HasPrefix(line, "type ") {
			do(line)
		}
	}
}
