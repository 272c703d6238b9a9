package convert_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/ipvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source/read"
)

// What ipvsadm prints of our own virtual servers converts to services that make the same ones.
func TestRoundTrip(t *testing.T) {
	files, err := filepath.Glob("../../../proxier/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	lines := 0
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for name, fam := range map[string]policy.Family{"want.ipvs": policy.IPv4, "want.ipvs6": policy.IPv6} {
				if want := servers(strings.Split(section(ar, name), "\n")); want != "" {
					lines += strings.Count(want, "\n")
					if diff := cmp.Diff(want, again(t, fam, want)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", name, diff)
					}
				}
			}
		})
	}
	if lines < 50 {
		t.Errorf("only %d lines were compared", lines)
	}
}

// again returns the virtual servers of the services that these virtual servers convert to.
func again(t *testing.T, fam policy.Family, text string) string {
	d, err := document(format(t, "ipvsadm"), reader.Input{Name: "saved", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	services, _ := read.Parse("services.toml", d.TOML)
	own := []netip.Addr{netip.MustParseAddr("198.51.100.99")}
	node := &policy.Node{Name: "this-node", Addrs: own, NodePortAddrs: own}
	return servers(ipvs.Text(policy.NewState(fam, node, services), configs.Default().IPVS.Scheduler))
}

// servers keeps the lines of ipvsadm.
func servers(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		if (strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "-a ")) && !strings.Contains(line, "SVCP-") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
