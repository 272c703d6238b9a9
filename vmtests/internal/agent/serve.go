package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// endPatience is how long a program may take to end after SIGTERM.
	endPatience = 5 * time.Second

	// leftoverPatience is how long a program's children may keep its output open after its end.
	leftoverPatience = time.Second
)

// Serve answers requests until the stream ends, and then kills what still runs.
func Serve(stream io.ReadWriter) error {
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{ctx: ctx, replies: json.NewEncoder(stream), runs: make(map[int]context.CancelFunc)}
	defer s.wg.Wait()
	defer cancel()
	s.send(reply{Done: true})
	requests := json.NewDecoder(stream)
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading requests: %w", err)
		}
		s.accept(r)
	}
}

type server struct {
	ctx context.Context
	wg  sync.WaitGroup

	mu      sync.Mutex
	replies *json.Encoder
	runs    map[int]context.CancelFunc
}

// send drops the reply when the stream has ended, which Serve will see.
func (s *server) send(r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies.Encode(r)
}

// accept starts what a request asks for.
func (s *server) accept(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Cancel {
		if cancel := s.runs[r.ID]; cancel != nil { // else it has ended by itself
			cancel()
		}
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.runs[r.ID] = cancel
	s.wg.Go(func() {
		answer := s.do(ctx, r)
		s.forget(r.ID)
		answer.ID, answer.Done = r.ID, true
		s.send(answer)
	})
}

func (s *server) forget(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[id]()
	delete(s.runs, id)
}

func (s *server) do(ctx context.Context, r request) (answer reply) {
	var err error
	switch {
	case r.Run != nil:
		answer.Code, err = run(ctx, *r.Run, output{s, r.ID})
	case r.Write != nil:
		err = write(*r.Write)
	default:
		answer.Output, err = os.ReadFile(r.Read)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// write replaces the file as a careful editor does, so that nobody reads half of it.
func write(f File) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".tmp")
	if err := os.WriteFile(temporary, f.Data, f.Mode); err != nil {
		return err
	}
	return os.Rename(temporary, f.Path)
}

// run runs a program, and ends it with its children when ctx ends.
func run(ctx context.Context, c Command, out io.Writer) (code int, err error) {
	if len(c.Args) == 0 {
		return 0, errors.New("no program to run")
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), c.Env...), c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Input), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var kill *time.Timer
	cmd.Cancel = func() error {
		kill = time.AfterFunc(endPatience, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = endPatience + leftoverPatience
	err = cmd.Run()
	if kill != nil && kill.Stop() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that outlived it
	}
	if cmd.ProcessState == nil {
		return 0, err
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// output is the output of the run with an ID.
type output struct {
	server *server
	id     int
}

func (o output) Write(text []byte) (int, error) {
	o.server.send(reply{ID: o.id, Output: text})
	return len(text), nil
}
