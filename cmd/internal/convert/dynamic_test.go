package convert_test

import (
	"fmt"
	"os/exec"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source/read"
)

// The command of a check with misc_dynamic passes where keepalived would send connections.
func TestMiscDynamicPasses(t *testing.T) {
	for code, want := range map[int]bool{0: true, 1: false, 2: false, 3: true, 125: true, 126: false, 127: false, 255: true} {
		text := fmt.Sprintf("virtual_server 192.0.2.1 80 {\nprotocol TCP\nreal_server 10.0.0.1 80 {\nMISC_CHECK {\n"+
			"misc_path \"/bin/sh -c 'test $1 = 198.51.100.7 && exit %d' sh 10.0.0.1\"\nmisc_dynamic\n}\n}\n}\n", code)
		words := commandOf(t, text)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Env = []string{"SVCPROXY_ADDRESS=198.51.100.7"}
		if passed := cmd.Run() == nil; passed != want {
			t.Errorf("exit code %d: passes: %v; want %v of %q", code, passed, want, words)
		}
	}
}

// One command for programs that differ runs that of the endpoint that is asked, and passes one that has none, as the sorry server.
func TestProgramsByAddress(t *testing.T) {
	text := "virtual_server 192.0.2.1 80 {\nprotocol TCP\nsorry_server 10.0.0.9 80\n"
	for address, program := range map[string]string{
		"10.0.0.1": "\"/bin/sh -c 'test $1 = one' sh one\"", "10.0.0.2": "\"/bin/sh -c 'test $1 = one' sh 'two words'\"", "10.0.0.3": "\"/bin/sh -c 'exit 3'\"\nmisc_dynamic",
	} {
		text += "real_server " + address + " 80 {\nMISC_CHECK {\nmisc_path " + program + "\n}\n}\n"
	}
	words := commandOf(t, text+"}\n")
	for address, want := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false, "10.0.0.3": true, "10.0.0.9": true} {
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Env = []string{"SVCPROXY_ADDRESS=" + address}
		if passed := cmd.Run() == nil; passed != want {
			t.Errorf("%s: passes: %v; want %v of %q", address, passed, want, words)
		}
	}
}

// commandOf returns the command of the check of the only service in a keepalived.conf.
func commandOf(t *testing.T, text string) []string {
	t.Helper()
	d, err := document(format(t, "keepalived"), reader.Input{Name: "in", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	services, _ := read.Parse("services.toml", d.TOML)
	if len(services) != 1 || services[0].HealthCheck == nil {
		t.Fatalf("no check in\n%s", d.TOML)
	}
	return services[0].HealthCheck.Command
}
