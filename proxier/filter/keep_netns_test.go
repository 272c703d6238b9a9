//go:build netns

package filter

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func keepTables(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("nft list tables: %v\n%s", err, out)
	}
	var list []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, keepTableName) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return strings.Join(list, ", ")
}

// A look that finds the table gone and waits for its turn does not make it again
// when all that is ours has been removed meanwhile.
func TestLookBesideCleanupKeepsNothing(t *testing.T) {
	k, _, _, _ := watched(t)
	ctx := context.Background()
	release, err := k.tool.LockWriter(ctx)
	fatal.If(t, err)
	command(t, "nft", "delete", "table", "inet", keepTableName+"-4")
	done := make(chan error)
	go netnstest.Here(t, func() { _, err := k.Look(ctx); done <- err })()
	pace.Until(t, "a look", func() bool { return len(k.looking) == 1 })
	time.Sleep(500 * time.Millisecond) // it comes to its turn, and waits
	k.mirror.forget()
	fatal.If(t, k.keep.removeTable(t.Context()))
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := keepTables(t); got != "" {
		t.Errorf("after cleaning up: %s", got)
	}
}
