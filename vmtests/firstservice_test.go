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
	tries     int // counts of metrics are those of a moment ago, which is longer where counting them takes long
}{
	{"svcproxy check", []string{"services: 1"}, nil, 1},
	{"systemctl enable --now", []string{"this is one", "this is two"}, nil, 1},
	{"pkill -f 'httpd -p 192.168.10.12'", []string{"this is one", "DOWN"}, []string{"this is two"}, 1},
	{"sleep 4", []string{"2/2"}, []string{"DOWN"}, 1},
	{"svcproxy drain", []string{"draining", "new disk"}, nil, 1},
	{"svcproxy explain", []string{"verdict"}, nil, 1},
	{"10349/metrics", []string{`svcproxy_endpoints{state="up"} 2`, "CONN/S"}, nil, 5},
	{"svcproxy cleanup", []string{"table ip svcproxy"}, nil, 1},
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
	run := func(i int) string {
		out, err := node.Output(t.Context(), "sh", "-e", fmt.Sprintf("/root/%d.sh", i))
		if err != nil {
			log, _ := node.Output(t.Context(), "journalctl", "-u", "svcproxy", "--no-pager")
			t.Fatalf("%v\n%s\nafter\n%s\n%s", err, out, blocks[i][1], log)
		}
		return string(out)
	}
	for i, b := range blocks {
		out := run(i)
		for _, after := range afterBlock {
			if !strings.Contains(b[1], after.commands) {
				continue
			}
			checked++
			err := says(out, after.want, after.not)
			for n := 1; err != nil && n < after.tries; n++ {
				err = says(run(i), after.want, after.not)
			}
			if err != nil {
				t.Errorf("after\n%s\n%v", b[1], err)
			}
		}
	}
	if checked != len(afterBlock) {
		t.Errorf("%d of %d results were looked at", checked, len(afterBlock))
	}
}

// says returns an error unless commands have printed some texts, and others not.
func says(out string, want, not []string) error {
	for _, text := range want {
		if !strings.Contains(out, text) {
			return fmt.Errorf("no %q in\n%s", text, out)
		}
	}
	for _, text := range not {
		if strings.Contains(out, text) {
			return fmt.Errorf("%q is in\n%s", text, out)
		}
	}
	return nil
}
