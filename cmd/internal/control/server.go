package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

// maxPath is the longest path a socket can be bound to, in bytes: sun_path
// without its NUL, <linux/un.h>.
const maxPath = 107

// maxConns is how many clients are served at once; more wait.
const maxConns = 16

// A Server is the daemon's end of the socket, and its claim to the run directory.
type Server struct {
	listener net.Listener
	lock     *os.File
}

// Listen makes the run directory where it is missing, claims it, and opens the
// socket in it. A daemon that died leaves both behind; that does no harm.
func Listen(runDir string) (*Server, error) {
	path := socketPath(runDir)
	if len(path) > maxPath {
		return nil, fmt.Errorf("control socket %s: path is longer than %d bytes; choose a shorter --run-dir", path, maxPath)
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("making run directory: %w", err)
	}
	claimed, err := claim(runDir)
	if err != nil {
		return nil, err
	}
	l, err := listen(path)
	if err != nil {
		return nil, errors.Join(err, claimed.Close())
	}
	return &Server{l, claimed}, nil
}

// ErrClaimed says that another daemon has the lock of a directory.
var ErrClaimed = errors.New("another svcproxy")

// claim takes the lock of the run directory.
func claim(runDir string) (*os.File, error) { return claimDir("run", runDir, "svcproxy.lock") }

// ClaimState takes the lock of a state directory until the file is closed: two
// daemons would remove each other's copies and records.
func ClaimState(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("making state directory: %w", err)
	}
	return claimDir("state", stateDir, "state.lock") // another one: it may be the run directory, too
}

// claimDir takes the lock of a directory of some kind, a file of that name. The kernel releases it when
// its holder dies, so that, unlike a socket file, it is never stale.
func claimDir(kind, dir, name string) (*os.File, error) {
	fail := func(err error) error { return fmt.Errorf("claiming %s directory %s: %w", kind, dir, err) }
	// Readable for nobody else: who can open a file can also lock it.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail(err)
	}
	if err := lock(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w%s is running; give each its own --%s-dir", ErrClaimed, holder(f), kind)
		}
		return nil, errors.Join(fail(err), f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fail(err), f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(fail(err), f.Close())
	}
	return f, nil
}

// lockPatience is for how long a daemon that was killed may still seem to hold
// its lock: until a child that it was starting has become another program.
const lockPatience = 2 * time.Second

// lock locks f, or says that somebody else has.
func lock(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// holder returns " (pid 123)", or nothing where that cannot be said.
func holder(lock io.Reader) string {
	b, err := io.ReadAll(io.LimitReader(lock, 20))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// listen opens the socket for root and its group. The caller holds the lock, so
// that a socket that is there already is a dead one.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing a stale control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening control socket: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("opening control socket: %w", err), l.Close())
	}
	return l, nil
}

// Serve answers with status until ctx ends. The socket is gone when it returns,
// the claim is released.
func (s *Server) Serve(ctx context.Context, status func() Status) error {
	defer s.lock.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// The client may be gone; there is nobody else to tell.
		_ = json.NewEncoder(w).Encode(status())
	})
	srv := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       5 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // it has only what clients did wrong
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // Serve returns all the same
	defer stop()
	if err := srv.Serve(netutil.LimitListener(s.listener, maxConns)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the control socket: %w", err)
	}
	return nil
}
