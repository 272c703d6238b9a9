package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/internal/pace"
)

// unread is set for a process whose standard error nobody reads.
const unread = "SVCPROXY_TEST_UNREAD"

// The daemon goes on where the program that took its log has ended.
func TestDaemonOutlivesTheReaderOfItsLog(t *testing.T) {
	if os.Getenv(unread) != "" {
		outliveReaders()
		for range 3 {
			fmt.Fprintln(os.Stderr, "a line of the log")
		}
		os.Exit(0)
	}
	r, w, err := os.Pipe()
	fatal.If(t, err)
	r.Close()
	defer w.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDaemonOutlivesTheReaderOfItsLog$")
	cmd.Env, cmd.Stderr = append(os.Environ(), unread+"=1"), w
	if err := cmd.Run(); err != nil {
		t.Errorf("without a reader: %v", err)
	}
}

// It ends also where the program that takes its log is there and does not read, with what it would say last.
func TestEndWithoutReading(t *testing.T) {
	w, _ := logtest.FullPipe(t)
	cmd := command(t, etc(t, map[string]string{"svcproxy.toml": "masquerade = 'x'\n"}), "run")
	cmd.Stderr = w
	fatal.If(t, cmd.Start())
	late := time.AfterFunc(pace.Scale(30*time.Second), func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
}
