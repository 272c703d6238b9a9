//go:build netns

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// No command waits for a svcproxy.toml on a file system that does not answer, nor for a whole directory there.
func TestCommandsDoNotWaitForDeadSettings(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	far, linked, whole := t.TempDir(), etc(t, map[string]string{"a.toml": "services = []\n"}), etc(t, nil)
	fatal.If(t, os.Symlink(filepath.Join(far, "x"), filepath.Join(linked, "etc", "svcproxy.toml")))
	disktest.Dead(t, far)
	disktest.Dead(t, filepath.Join(whole, "etc"))
	var wg sync.WaitGroup
	for _, args := range [][]string{
		{"check"}, {"config"}, {"init"}, {"plan"}, {"plan", "--against", t.TempDir()}, {"explain", "192.0.2.1", "192.0.2.2:80"}, {"convert", "ipvsadm", "/dev/null"},
	} {
		for _, dir := range []string{linked, whole} {
			wg.Go(func() {
				var stderr strings.Builder
				cmd := command(t, dir, args...)
				cmd.Stderr = &stderr
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				hangs := time.AfterFunc(pace.Scale(time.Minute), func() { _ = cmd.Process.Kill() })
				defer hangs.Stop()
				if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "its file system does not answer") {
					t.Errorf("%v: %v: %s", args, err, &stderr)
				}
			})
		}
	}
	wg.Wait()
}
