package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// ErrUnreachable is wrapped by errors that say no daemon answers.
var ErrUnreachable = errors.New("svcproxy does not answer; is it running?")

// ErrNoRights is wrapped by errors that say that this user may not ask.
var ErrNoRights = errors.New("svcproxy cannot be asked")

// ErrForbidden is wrapped by errors that say that this user may ask, but change nothing.
var ErrForbidden = errors.New("svcproxy refuses")

// A Client asks a running daemon.
type Client struct {
	path    string
	connect func(context.Context) (net.Conn, error)
	silence time.Duration // how long the daemon may say nothing; 0: silentAfter
}

// NewClient returns a client of the daemon that has claimed runDir.
func NewClient(runDir string) *Client {
	path := socketPath(runDir)
	return &Client{path: path, connect: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
}

// dial connects for one question.
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	patient := patientConn{Conn: conn, silence: cmp.Or(c.silence, silentAfter)}
	if cred, err := credentials(conn.(*net.UnixConn)); err == nil {
		patient.pid = int(cred.Pid)
	}
	return patient, nil
}

// Patient has c wait for so long, in place of 30 s, while a daemon that is not stopped says
// nothing, and returns c. The daemon closes a connection a minute after the question.
func (c *Client) Patient(silence time.Duration) *Client {
	c.silence = silence
	return c
}

// StatusOf returns what the daemon tells of itself, with the services of a selection; nil: all.
// The error wraps ErrUnreachable when no daemon answers.
func (c *Client) StatusOf(ctx context.Context, which source.Selection) (Status, error) {
	var st Status
	err := c.Ask(ctx, "/v1/status", queryOf(which), &st)
	return st, err
}

// Running reports whether a daemon answers at all.
func (c *Client) Running(ctx context.Context) bool {
	_, err := c.PID(ctx)
	return err == nil
}

// PID returns the process that listens on the socket, as this one sees it. It does not ask it.
func (c *Client) PID(ctx context.Context) (int, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := credentials(conn.(*net.UnixConn))
	if err != nil {
		return 0, fmt.Errorf("asking who listens on %s: %w", c.path, err)
	}
	return int(cred.Pid), nil
}

// Ask gets what the daemon answers at a path of Get into answer. The error wraps
// ErrUnreachable when no daemon answers, or when it ends before it has.
func (c *Client) Ask(ctx context.Context, path string, query url.Values, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, http.NoBody, answer)
}

// Tell sends a question to a path of Post, and gets what the daemon answers into answer.
func (c *Client) Tell(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("asking %s for %s: %w", c.path, path, err)
	}
	return c.do(ctx, http.MethodPost, path, bytes.NewReader(body), answer)
}

// do asks, for as long as the answer takes while something of it comes in.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://svcproxy"+path, body)
	if err != nil {
		return fmt.Errorf("asking %s: %w", c.path, err)
	}
	asking := http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	resp, err := asking.Do(req)
	if err != nil {
		return endedBy(ctx, unanswered(err))
	}
	defer resp.Body.Close()
	switch err := read(resp, answer); {
	case err == nil:
		return nil
	case errors.As(err, new(toldError)), errors.Is(err, ErrForbidden):
		return err // it is the answer
	case errors.Is(err, errEnding), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, new(*net.OpError)):
		return endedBy(ctx, fmt.Errorf("%w: it ended before it had answered: %w", ErrUnreachable, err))
	default:
		return endedBy(ctx, fmt.Errorf("asking %s for %s: %w", c.path, path, err))
	}
}

// errEnding is wrapped by what a daemon says that ends while it answers.
var errEnding = errors.New("it is ending")

// A toldError is an error that the daemon tells.
type toldError string

func (e toldError) Error() string { return string(e) }

// read reads an answer, or the error that is there instead.
func read(resp *http.Response, answer any) error {
	switch resp.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(resp.Body).Decode(answer)
	case http.StatusUnprocessableEntity, http.StatusForbidden, http.StatusServiceUnavailable:
		var f map[string]string
		if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
			return err
		}
		switch resp.StatusCode {
		case http.StatusForbidden:
			return fmt.Errorf("%w: %s", ErrForbidden, f["error"])
		case http.StatusServiceUnavailable:
			return fmt.Errorf("%w: %s", errEnding, f["error"])
		}
		return toldError(f["error"])
	}
	return fmt.Errorf("%s; is it another version of svcproxy?", resp.Status)
}

// unanswered returns why there is no answer.
func unanswered(err error) error {
	if dial, ok := errors.AsType[*url.Error](err); ok {
		err = dial.Err // without an address that means nothing on a unix socket
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w; the socket is for root and its group", ErrNoRights, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// Summary returns the daemon's summary of itself, with at most that many problems, see
// Few. The error is as that of Status.
func (c *Client) Summary(ctx context.Context, most int) (Summary, error) {
	var s Summary
	err := c.Ask(ctx, "/v1/summary", url.Values{"most": {strconv.Itoa(most)}}, &s)
	return s, err
}

// Services returns the services of a selection, by name.
func (c *Client) Services(ctx context.Context, which source.Selection) ([]report.ServiceStatus, error) {
	var list []report.ServiceStatus
	err := c.Ask(ctx, "/v1/services", queryOf(which), &list)
	return list, err
}
