//go:build netns

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// quotedAddresses returns n addresses of a network, as elements of a list.
func quotedAddresses(network, n int) string {
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "%q, ", fmt.Sprintf("%d.%d.%d.%d", network, i>>16, i>>8&255, i&255))
	}
	return strings.TrimSuffix(list.String(), ", ")
}

// Files far above a limit are refused by the name of the key, within 200 MB: some near the largest size, and small ones
// in 2 s, too. The memory is that of the whole process, with the program itself, and without the race detector, which takes
// several times as much.
func TestMemoryOfCheck(t *testing.T) {
	const large = 700_000
	for _, tt := range []struct {
		key, file, format string
		vips              int
		others            string // endpoints or source ranges
	}{
		{"frontends", "a.toml", inTOML, large, ""},
		{"frontends", "a.json", `{"services": [{"name": "a", "vips": [%s], "ports": [{"port": "1-1000"}]%s}]}`, large, ""},
		{"frontends", "a.toml", inTOML, 5000, ""},
		{"frontend_endpoints", "a.toml", inTOML, 1000, "endpoints = [" + quotedAddresses(192, 1000) + "]\n"},
		{"frontend_source_ranges", "a.toml", inTOML, 1000, "source_ranges = [" + strings.ReplaceAll(quotedAddresses(192, 1000)+",", `",`, `/32",`) + "]\n"},
	} {
		dir := etc(t, map[string]string{tt.file: fmt.Sprintf(tt.format, quotedAddresses(10, tt.vips), tt.others)})
		start := time.Now()
		stderr, peak := peakOf(t, dir)
		if tt.vips < large && pace.Over(start, 2*time.Second) {
			t.Errorf("%s: check of a small file takes %v", tt.key, time.Since(start))
		}
		if !strings.Contains(stderr, "raise "+tt.key+" in [limits] of svcproxy.toml") {
			t.Errorf("%s in %s: %.1000s", tt.key, tt.file, stderr)
		}
		if peak == 0 || peak > 200_000 {
			t.Errorf("%s in %s: check takes %d kB", tt.key, tt.file, peak)
		}
	}
}

const inTOML = "[[services]]\nname = \"a\"\nvips = [%s]\nports = [{ port = \"1-1000\" }]\n%s"

// peakOf runs check, and returns what it says and the most memory that it used, in kB. The last milliseconds do not count.
func peakOf(t *testing.T, dir string) (said string, peak int) {
	t.Helper()
	var stderr strings.Builder
	cmd := command(t, dir, "check")
	cmd.Stderr = &stderr
	fatal.If(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // what it says is looked at
	}()
	for {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "status")) // it may have ended
		if _, after, ok := strings.Cut(string(status), "VmHWM:"); ok {
			_, _ = fmt.Sscan(after, &peak)
		}
		select {
		case <-ended:
			return stderr.String(), peak
		case <-time.After(time.Millisecond):
		}
	}
}
