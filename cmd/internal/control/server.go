package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// maxPath is the longest path a socket can be bound to, in bytes: sun_path
// without its NUL, <linux/un.h>.
const maxPath = 107

// lookInterval is how often the socket is looked at: who clears /run removes it.
var lookInterval = 30 * time.Second

// A Server is the daemon's end of the socket, and its claim to the run directory.
type Server struct {
	runDir   string
	lock     *os.File          // nil: the directory is not claimed
	listener *net.UnixListener // nil: there is no socket
	file     os.FileInfo       // of the socket
	failed   error             // why there is no socket; nil: there is
	trouble  atomic.Value      // a string: why groups that should cannot use the socket
}

// Listen makes the run directory where it is missing, claims it, and opens the
// socket in it. A daemon that died leaves both behind; that does no harm. It is an
// error that another daemon has the directory. Where there can be no socket now, as
// /run is full, say, Serve tries again: services do not wait for it.
func Listen(runDir string) (*Server, error) {
	if path := socketPath(runDir); len(path) > maxPath {
		return nil, fmt.Errorf("control socket %s: path is longer than %d bytes; choose a shorter --run-dir", path, maxPath)
	}
	s := &Server{runDir: runDir}
	if s.failed = s.open(lockPatience); errors.Is(s.failed, ErrClaimed) {
		return nil, s.failed
	}
	return s, nil
}

// Warnings returns what is wrong with the socket. It may be called from any goroutine. s may be nil.
func (s *Server) Warnings() []string {
	if s == nil {
		return nil
	}
	if text, _ := s.trouble.Load().(string); text != "" {
		return []string{text}
	}
	return nil
}

// Serve answers until ctx ends, and opens the socket again when it was
// removed. The socket is gone when it returns, the claim is released.
func (s *Server) Serve(ctx context.Context, log *slog.Logger, routes *Routes) {
	srv := newServer(ctx, routes)
	defer s.close()
	defer srv.Close()
	s.answer(srv, log)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if s.isThere() {
			continue
		}
		before := s.failed
		s.failed = s.open(0)
		if s.failed == nil {
			log.Warn("the control socket was missing; reopened it", "run_dir", s.runDir)
		}
		if s.failed == nil || before == nil || before.Error() != s.failed.Error() {
			s.answer(srv, log)
		}
	}
}

// answer has clients of the socket served, or says why there is none.
func (s *Server) answer(srv *http.Server, log *slog.Logger) {
	if s.failed != nil {
		log.Error("cannot create the control socket; svcproxy status is unavailable, retrying", "err", s.failed, "retry", lookInterval)
		return
	}
	for _, w := range s.Warnings() {
		log.Warn(w)
	}
	l := s.listener
	go func() {
		err := srv.Serve(&peerListener{l, newTurns(maxReaderConns, maxWriterConns)})
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			log.Warn("the control socket failed; reopening it", "err", err)
			l.Close() // so that it is
		}
	}()
}

func newServer(ctx context.Context, routes *Routes) *http.Server {
	return &http.Server{
		Handler:           newTurns(maxReaderAnswers, maxWriterAnswers).handler(&routes.mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       5 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // it has only what clients did wrong
	}
}
