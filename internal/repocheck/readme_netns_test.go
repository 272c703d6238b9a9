//go:build netns

package repocheck

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// The commands of README's first service do what they say, under another name.
func TestReadmeFirstService(t *testing.T) {
	text, err := os.ReadFile("README.md")
	fatal.If(t, err)
	m := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindSubmatch(text)
	if m == nil {
		t.Fatal("README has no commands of a first service")
	}
	name := fmt.Sprintf("first-%d", os.Getpid())
	commands := regexp.MustCompile(`\bfirst\b`).ReplaceAllString(string(m[1]), name)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", commands)
	cmd.WaitDelay = time.Second
	t.Cleanup(func() {
		_ = exec.Command("sh", "-c", "kill -9 $(ip netns pids "+name+") ; ip netns delete "+name).Run()
		_ = os.RemoveAll(name)
	})
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"this is .11", "this is .12", "table ip svcproxy"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", name, err)
	}
}
