package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnreachable is wrapped by errors that say no daemon answers.
var ErrUnreachable = errors.New("svcproxy does not answer; is it running?")

// ErrNoRights is wrapped by errors that say that this user may not ask.
var ErrNoRights = errors.New("svcproxy cannot be asked")

// answerTime is how long a daemon may take. Status of 1,000,000 endpoints takes some seconds.
const answerTime = 30 * time.Second

// A Client asks a running daemon.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client of the daemon that has claimed runDir.
func NewClient(runDir string) *Client {
	path := socketPath(runDir)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path, &http.Client{
		Timeout:   answerTime,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// Status returns what the daemon tells of itself. The error wraps
// ErrUnreachable when no daemon answers.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	err := c.get(ctx, "/v1/status", &st)
	return st, err
}

// Running reports whether a daemon answers at all.
func (c *Client) Running(ctx context.Context) bool {
	_, err := c.PID(ctx)
	return err == nil
}

// PID returns the process that listens on the socket, as this one sees it. It does not ask it.
func (c *Client) PID(ctx context.Context) (int, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = cmp.Or(err, failed); err != nil {
		return 0, fmt.Errorf("asking who listens on %s: %w", c.path, err)
	}
	return int(cred.Pid), nil
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://svcproxy"+path, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", c.path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var dial *url.Error
		if errors.As(err, &dial) {
			err = dial.Err // without an address that means nothing on a unix socket
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %w; the socket is for root and its group", ErrNoRights, err)
		}
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %s for %s: %s; is it another version of svcproxy?", c.path, path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("asking %s for %s: %w", c.path, path, err)
	}
	return nil
}
