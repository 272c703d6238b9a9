package main

import (
	"os"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// Lines of keepalived that are of one host are those of this one, unless another one is named.
func TestConvertForThisHost(t *testing.T) {
	host, err := os.Hostname()
	fatal.If(t, err)
	host, _, _ = strings.Cut(host, ".")
	server := "virtual_server $VIP 80 {\n protocol TCP\n real_server 10.0.0.1 80 {\n }\n}\n"
	text := "@" + host + " $VIP=192.0.2.1\n@^" + host + " $VIP=192.0.2.2\n" + server
	dir := etc(t, nil)
	t.Chdir(dir)
	fatal.If(t, os.WriteFile("in", []byte(text), 0o644))
	for id, want := range map[string]string{"": "192.0.2.1", "another.host": "192.0.2.2"} {
		args := []string{"convert", "keepalived", "in"}
		if id != "" {
			args = append(args, "--config-id", id)
		}
		code, out, stderr := call(t, dir, args...)
		if code != 0 || !strings.Contains(out, `vips = ["`+want+`"]`) {
			t.Errorf("--config-id %q: exit %d: %s\nwant %s in\n%s", id, code, stderr, want, out)
		}
	}
}
