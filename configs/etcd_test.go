package configs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

func TestEtcdFaults(t *testing.T) {
	const tls = "[etcd]\nendpoints = ['https://etcd-1.example.net:2379', 'https://[fd00::1]:2379']\n"
	const member = `; want a URL with a port, such as "https://10.0.0.1:2379"`
	many := "[etcd]\nendpoints = ['http://10.0.0.1:1'"
	for i := range 64 {
		many += fmt.Sprintf(", 'http://10.0.0.1:%d'", i+2)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"good", tls + "username = 'a'\npassword_file = '/p'\ncert_file = '/c'\nkey_file = '/k'\nca_file = '/a'\nprefix = '/a/b/'", ""},
		{"loopback", "[etcd]\nendpoints = ['http://127.0.0.1:2379']\nusername = 'a'\npassword_file = '/p'", ""},
		{"no endpoints", "sources = ['etcd']\n", "1:11: sources has etcd, and [etcd] has no endpoints; write endpoints = [\"https://10.0.0.1:2379\"] there, say"},
		{"no port", "[etcd]\nendpoints = ['https://10.0.0.1']", `2:14: endpoints[0] is "https://10.0.0.1"` + member},
		{"no scheme", "[etcd]\nendpoints = ['10.0.0.1:2379']", `2:14: endpoints[0] is "10.0.0.1:2379"` + member},
		{"a path", "[etcd]\nendpoints = ['http://10.0.0.1:2379/v3']", `2:14: endpoints[0] is "http://10.0.0.1:2379/v3"` + member},
		{"a user", "[etcd]\nendpoints = ['http://u:p@10.0.0.1:2379']", `2:14: endpoints[0] is "http://u:p@10.0.0.1:2379"` + member},
		{"many", many + "]", "2:13: there are 65 endpoints; want 64 at most"},
		{"every key of etcd", "[etcd]\nprefix = ''", `2:10: prefix is ""; want the beginning of keys, with / at both ends, such as "/svcproxy/services/"`},
		{"a relative prefix", "[etcd]\nprefix = 'a/'", `2:10: prefix is "a/"; want the beginning of keys, with / at both ends, such as "/svcproxy/services/"`},
		{"a password in clear", strings.Replace(tls, "https", "http", 1) + "username = 'a'\npassword_file = '/p'", "2:14: the password would be sent to http://etcd-1.example.net:2379 as it is; write https://, or leave out username and password_file"},
		{"half of a login", tls + "username = 'a'", "3:12: username is set, and password_file is not; write both, or none"},
		{"half of a certificate", tls + "key_file = '/k'", "3:12: key_file is set, and cert_file is not; write both, or none"},
		{"certificates without TLS", "[etcd]\nendpoints = ['http://10.0.0.1:2379']\nca_file = '/a'", "2:14: there are certificates, and http://10.0.0.1:2379 needs none; write https://, or leave out the certificates"},
	} {
		_, faults := configs.Parse("x", []byte(tt.text))
		var lines []string
		for _, f := range faults {
			lines = append(lines, strings.TrimPrefix(f.String(), "x:"))
		}
		if got := strings.Join(lines, "\n"); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestEtcdPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	e := configs.Etcd{PasswordFile: path}
	for _, tt := range []struct {
		text, want string
		mode       os.FileMode
		fails      bool
	}{{"s3cret\n", "s3cret", 0o600, false}, {"s3cret", "", 0o640, true}, {"", "", 0o600, true}, {"a\nb\n", "", 0o600, true}, {strings.Repeat("x", 1025), "", 0o600, true}} {
		fatal.If(t, os.WriteFile(path, []byte(tt.text), tt.mode))
		fatal.If(t, os.Chmod(path, tt.mode))
		got, err := e.Password()
		if got != tt.want || (err != nil) != tt.fails || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.20q, mode %o: %q, %v", tt.text, tt.mode, got, err)
		}
	}
}
