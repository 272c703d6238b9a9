package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// asServer in the environment makes the tests' binary a server in the directory that it names.
const asServer = "SVCPROXY_TEST_AS_SERVER"

func serveForever(dir string) {
	s, err := Listen(dir)
	if err != nil {
		panic(err)
	}
	s.Serve(context.Background(), slog.New(slog.DiscardHandler), sampleRoutes())
}

// What is stopped is called so, soon; going on, it answers.
func TestStoppedDaemonIsNamed(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asServer+"="+dir)
	fatal.If(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	c := NewClient(dir)
	pace.Until(t, "answering", func() bool { _, err := c.StatusOf(t.Context(), nil); return err == nil })
	fatal.If(t, cmd.Process.Signal(syscall.SIGSTOP))
	pace.Until(t, "stopped", func() bool { return isStopped(cmd.Process.Pid) })
	_, err := c.StatusOf(t.Context(), nil)
	want := fmt.Sprintf("svcproxy (pid %d) does not answer; it is stopped", cmd.Process.Pid)
	if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, ErrUnreachable) {
		t.Errorf("while it is stopped: %v\nwant: %s", err, want)
	}
	fatal.If(t, cmd.Process.Signal(syscall.SIGCONT))
	if _, err := c.StatusOf(t.Context(), nil); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// An answer may take any time while some of it comes in, and not long while nothing does.
func TestSlowAnswersAreAwaitedWhileBytesArrive(t *testing.T) {
	old := [2]time.Duration{stoppedAfter, silentAfter}
	stoppedAfter, silentAfter = 100*time.Millisecond, pace.Scale(time.Second)
	defer func() { stoppedAfter, silentAfter = old[0], old[1] }()
	dir := t.TempDir()
	l, err := net.Listen("unix", socketPath(dir))
	fatal.If(t, err)
	const parts = 15
	mux := http.NewServeMux()
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `"`)
		for range parts {
			fmt.Fprint(w, "x")
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
		fmt.Fprint(w, `"`)
	})
	mux.HandleFunc("/silent", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `"`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/late", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(silentAfter * 3 / 2)
		fmt.Fprint(w, `"late"`)
	})
	srv := &http.Server{Handler: mux}
	defer srv.Close()
	go srv.Serve(l)
	var said string
	ask := func() error { return NewClient(dir).Ask(t.Context(), "/slow", nil, &said) }
	for range 4 { // a machine that stands still between two parts makes it silent
		if err = ask(); err == nil {
			break
		}
	}
	if err != nil || said != strings.Repeat("x", parts) {
		t.Errorf("slow: %q, %v", said, err)
	}
	if err := NewClient(dir).Ask(t.Context(), "/silent", nil, &said); !errors.Is(err, ErrUnreachable) || !errors.Is(err, errSilent) {
		t.Errorf("silent: %v", err)
	}
	if err := NewClient(dir).Patient(time.Hour).Ask(t.Context(), "/late", nil, &said); err != nil || said != "late" {
		t.Errorf("late, and patient: %q, %v", said, err)
	}
}
