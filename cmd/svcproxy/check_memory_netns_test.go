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
)

// Files far above a limit, and near the largest size, are refused by the name of the key, within 200 MB. The memory is that of
// the whole process, with the program itself, and without the race detector, which takes several times as much.
func TestMemoryOfCheck(t *testing.T) {
	var list strings.Builder
	for i := range 700_000 {
		fmt.Fprintf(&list, "%q, ", fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	vips := strings.TrimSuffix(list.String(), ", ")
	for name, text := range map[string]string{
		"a.toml": "[[services]]\nname = \"a\"\nvips = [" + vips + "]\nports = [{ port = \"1-1000\" }]\n",
		"a.json": `{"services": [{"name": "a", "vips": [` + vips + `], "ports": [{"port": "1-1000"}]}]}`,
	} {
		stderr, peak := peakOf(t, etc(t, map[string]string{name: text}))
		if !strings.Contains(stderr, "raise frontends in [limits] of svcproxy.toml") {
			t.Errorf("%s: %s", name, stderr)
		}
		if peak == 0 || peak > 200_000 {
			t.Errorf("%s: check takes %d kB", name, peak)
		}
	}
}

// peakOf runs check, and returns what it says and the most memory that it used, in kB. The last milliseconds do not count.
func peakOf(t *testing.T, dir string) (said string, peak int) {
	t.Helper()
	var stderr strings.Builder
	cmd := command(t, dir, "check")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
