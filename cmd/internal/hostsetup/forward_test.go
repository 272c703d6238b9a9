package hostsetup

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// Programs that hang keep nobody who is told to stop.
func TestLookingAtLegacyIPTablesEnds(t *testing.T) {
	old := lookTime
	lookTime = time.Hour
	t.Cleanup(func() { lookTime = old })
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	for _, name := range []string{"iptables-save", "iptables-restore"} {
		script := "#!/bin/sh\n: > " + started + "\nexec /bin/sleep 3600\n"
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked := make(chan struct{})
	go func() { defer close(looked); legacyForward(ctx, false, "") }()
	pace.Until(t, "a program is started", func() bool { _, err := os.Stat(started); return err == nil })
	cancel()
	select {
	case <-looked:
	case <-time.After(pace.Scale(30 * time.Second)):
		t.Error("30 s after it was told to stop it still waits for a program")
	}
}
