package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// On this host, an agent by its standard input and output does what one by ssh does.
func TestAttach(t *testing.T) {
	binary, err := Build(t.Context(), "svcproxy.dev/svcproxy/vmtests/cmd/peer")
	if err != nil {
		t.Fatal(err)
	}
	peer := filepath.Join(t.TempDir(), "peer")
	if err := os.WriteFile(peer, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	g, err := Attach(t.Context(), "here", peer, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := g.Output(t.Context(), "echo", "a  b"); out != "a  b\n" || err != nil {
		t.Errorf("echo: %q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var out strings.Builder
	if _, err := g.Run(ctx, Command{Args: []string{"sh", "-c", "trap 'echo ended; exit' TERM; while :; do sleep 0.01; done"}}, &out); !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(out.String(), "ended\n") {
		t.Errorf("a program that was cancelled: %v, output %q", err, out.String())
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := g.Output(t.Context(), "true"); err == nil {
		t.Error("a program ran after the end")
	}
	if _, err := Attach(t.Context(), "nobody", "sh", "-c", "echo no way >&2; exit 1"); err == nil || !strings.Contains(err.Error(), "no way") {
		t.Errorf("without an agent: %v", err)
	}
}
