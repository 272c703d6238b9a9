package convert_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// samplesDir is where Debian's package of keepalived has its own samples.
const samplesDir = "/usr/share/doc/keepalived/samples"

// samples are how many services keepalived's samples have; those with none are about VRRP alone, or
// are of a firewall mark.
var samples = map[string]int{
	"HTTP_GET.port": 1, "IPv6": 1, "PING_CHECK": 1, "SMTP_CHECK": 1, "SSL_GET": 2, "UDP_CHECK": 1, "conditional_conf": 0, "fwmark": 0, "inhibit": 1,
	"misc_check": 1, "misc_check_arg": 1, "quorum": 1, "sample": 1, "status_code": 1, "track_interface": 0, "virtual_server_group": 3, "virtualhost": 1,
	"vrrp": 0, "vrrp.localcheck": 0, "vrrp.lvs_syncd": 1, "vrrp.routes": 0, "vrrp.rules": 0, "vrrp.scripts": 0, "vrrp.static_ipaddress": 0, "vrrp.sync": 0,
}

// Keepalived's own samples convert, where they are installed.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob(samplesDir + "/keepalived.conf.*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Log("keepalived's samples are not installed: nothing to convert")
	}
	for _, path := range files {
		name := strings.TrimPrefix(filepath.Base(path), "keepalived.conf.")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := document(format(t, "keepalived"), reader.Input{Name: path, Data: text, ID: "lb1"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want, known := samples[name]; known && d.Services != want {
			t.Errorf("%s: %d services; want %d in\n%s", name, d.Services, want, d.TOML)
		}
	}
}
