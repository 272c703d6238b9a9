package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// unread is set for a process whose standard error nobody reads.
const unread = "SVCPROXY_TEST_UNREAD"

// The daemon goes on where the program that took its log has ended.
func TestOutliveReaders(t *testing.T) {
	if os.Getenv(unread) != "" {
		outliveReaders()
		for range 3 {
			fmt.Fprintln(os.Stderr, "a line of the log")
		}
		os.Exit(0)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOutliveReaders$")
	cmd.Env, cmd.Stderr = append(os.Environ(), unread+"=1"), w
	if err := cmd.Run(); err != nil {
		t.Errorf("without a reader: %v", err)
	}
}
