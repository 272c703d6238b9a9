package agent

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect starts an agent in this process, and returns a client of it and the agent's end of the stream.
func connect(t *testing.T) (*Client, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(theirs) }()
	t.Cleanup(func() {
		ours.Close()
		if err := <-served; err != nil && !errors.Is(err, os.ErrClosed) && !strings.Contains(err.Error(), "closed pipe") {
			t.Error(err)
		}
	})
	c, err := Connect(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	return c, theirs
}

func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		cmd    Command
		output string
		code   int
	}{
		{"output of both kinds", Command{Args: []string{"sh", "-c", "echo out; echo err >&2"}}, "out\nerr\n", 0},
		{"exit code", Command{Args: []string{"sh", "-c", "exit 7"}}, "", 7},
		{"ended by a signal", Command{Args: []string{"sh", "-c", "kill -TERM $$"}}, "", 128 + 15},
		{"input", Command{Args: []string{"cat"}, Input: []byte("text")}, "text", 0},
		{"environment", Command{Args: []string{"sh", "-c", "echo $KEY"}, Env: []string{"KEY=value"}}, "value\n", 0},
		{"directory", Command{Args: []string{"pwd"}, Dir: "/"}, "/\n", 0},
	}
	c, _ := connect(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			code, err := c.Run(t.Context(), tt.cmd, &out)
			if err != nil || code != tt.code || out.String() != tt.output {
				t.Errorf("got code %d, output %q, error %v; want code %d, output %q", code, out.String(), err, tt.code, tt.output)
			}
		})
	}
}

func TestRunFaults(t *testing.T) {
	c, _ := connect(t)
	for _, args := range [][]string{nil, {"/no/such/program"}} {
		if _, err := c.Run(t.Context(), Command{Args: args}, nil); err == nil {
			t.Errorf("%q ran", args)
		}
	}
}

// A program whose time is over is killed with its children, and what it wrote is there.
func TestRunCancelled(t *testing.T) {
	c, _ := connect(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	var out signalWriter
	out.wrote = func() { cancel(enough) }
	start := time.Now()
	_, err := c.Run(ctx, Command{Args: []string{"sh", "-c", "echo begun; sleep 60 & wait"}}, &out)
	if !errors.Is(err, enough) || out.text != "begun\n" {
		t.Errorf("output %q, error %v", out.text, err)
	}
	if pace.Over(start, endPatience) {
		t.Errorf("ended after %v", time.Since(start))
	}
	if _, err := c.Run(t.Context(), Command{Args: []string{"true"}}, nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

type signalWriter struct {
	text  string
	wrote func()
}

func (w *signalWriter) Write(text []byte) (int, error) {
	w.text += string(text)
	w.wrote()
	return len(text), nil
}

func TestFiles(t *testing.T) {
	c, _ := connect(t)
	path := filepath.Join(t.TempDir(), "new", "file")
	if _, err := c.ReadFile(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("reading what is not there: %v", err)
	}
	want := bytes.Repeat([]byte{0, '\n', 0xff}, 100_000)
	if err := c.WriteFile(t.Context(), path, want, 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := c.ReadFile(t.Context(), path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, want %d; error %v", len(got), len(want), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}

// A stream that ends ends what waits for it, and all that is asked later.
func TestGone(t *testing.T) {
	c, stream := connect(t)
	out := signalWriter{wrote: func() { go stream.Close() }}
	if _, err := c.Run(t.Context(), Command{Args: []string{"sh", "-c", "echo begun; sleep 60"}}, &out); !errors.Is(err, ErrGone) {
		t.Errorf("while it ended: %v", err)
	}
	if _, err := c.ReadFile(t.Context(), "/etc/hostname"); !errors.Is(err, ErrGone) {
		t.Errorf("afterwards: %v", err)
	}
}

// Who connects to nobody waits no longer than he wants.
func TestConnectTimesOut(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, ours); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
