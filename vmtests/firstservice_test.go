//go:build vm

package vmtests

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// afterBlock is what the commands of docs/first-service.md say, by a text that is in them.
var afterBlock = []struct {
	commands  string
	want, not []string
}{
	{"svcproxy check", []string{"services: 1"}, nil},
	{"systemctl enable --now", []string{"this is one", "this is two"}, nil},
	{"pkill -f 'httpd -p 192.168.10.12'", []string{"this is one", "DOWN"}, []string{"this is two"}},
	{"sleep 4", []string{"2/2"}, []string{"DOWN"}},
	{"svcproxy drain", []string{"draining", "new disk"}, nil},
	{"svcproxy explain", []string{"verdict"}, nil},
	{"10349/metrics", []string{`svcproxy_endpoints{state="up"} 2`, "CONN/S"}, nil},
	{"svcproxy cleanup", []string{"table ip svcproxy"}, nil},
}

// A newcomer pastes docs/first-service.md into a host on which only the program is installed.
func TestFirstService(t *testing.T) {
	page, err := os.ReadFile("../docs/first-service.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	cfg := guest.Config{Name: "node", Again: tried.again(t.Name()), System: true, Files: install(t), Setup: "ip link set lo up\n"}
	for i, b := range blocks {
		cfg.Files = append(cfg.Files, guest.File{Path: fmt.Sprintf("/root/%d.sh", i), Mode: 0o644, Data: []byte(b[1])})
	}
	node, err := guest.Boot(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	checked := 0
	for i, b := range blocks {
		out, err := node.Output(t.Context(), "sh", "-e", fmt.Sprintf("/root/%d.sh", i))
		if err != nil {
			log, _ := node.Output(t.Context(), "journalctl", "-u", "svcproxy", "--no-pager")
			t.Fatalf("%v\n%s\nafter\n%s\n%s", err, out, b[1], log)
		}
		for _, after := range afterBlock {
			if strings.Contains(b[1], after.commands) {
				checked++
				says(t, b[1], out, after.want, after.not)
			}
		}
	}
	if checked != len(afterBlock) {
		t.Errorf("%d of %d results were looked at", checked, len(afterBlock))
	}
}

func says(t *testing.T, commands, out string, want, not []string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s\nafter\n%s", text, out, commands)
		}
	}
	for _, text := range not {
		if strings.Contains(out, text) {
			t.Errorf("%q is in\n%s\nafter\n%s", text, out, commands)
		}
	}
}
